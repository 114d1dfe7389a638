"""How to ask: the bytes of a request, in the fields that this server understands, for so many tokens in and out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from simserve.request import Chain

Endpoint = Literal["completions", "chat"]
FORCED = ("ignore_eos", "min_tokens")
USAGE = ("include_usage",)
USAGE_OF_EACH_EVENT = ("include_usage", "continuous_usage_stats")
# Ordinary tokens of every vocabulary from 1,024 up: special ones live at its ends, single bytes below 260.
TOKEN_IDS = (260, 1000)
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_LETTERS = np.array([f" {letter}" for letter in "abcdefghijklmnopqrstuvwxyz"])


class Beginning(NamedTuple):
    """What a prompt begins with, block by block, as a trace tells it. ``salt`` is one for a replay: another must not
    find the first one's prompts in a cache."""

    chain: Chain
    salt: int


@dataclass(frozen=True)
class Dialect:
    """``forced`` names the fields that force an output's length. ``token_ids`` is the range that prompts' ids come from
    (None: prompts are words); a prompt of u units has ``offset + tokens_per_unit · u`` tokens by the server's count."""

    model_id: str
    endpoint: Endpoint = "completions"
    forced: tuple[str, ...] = FORCED
    stream_options: tuple[str, ...] = USAGE
    token_ids: tuple[int, int] | None = None
    tokens_per_unit: float = 1.0
    offset: float = 0.0

    @property
    def path(self) -> str:
        return _PATHS[self.endpoint]

    def body(
        self, num_prompt: int, num_output: int, rng: np.random.Generator, beginning: Beginning | None = None
    ) -> bytes:
        """A request of about ``num_prompt`` tokens for ``num_output`` more. Without a ``beginning`` that it has in
        common with others a prompt is random from its first token on, so that no prefix cache knows it."""
        fields: dict[str, Any] = {"model": self.model_id, "max_tokens": num_output, "temperature": 0, "stream": True}
        if "ignore_eos" in self.forced:
            fields["ignore_eos"] = True
        if "min_tokens" in self.forced:
            fields["min_tokens"] = num_output
        if self.stream_options:
            fields["stream_options"] = dict.fromkeys(self.stream_options, True)
        prompt = self._prompt(self.units(num_prompt), rng, beginning)
        if self.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        return json.dumps(fields, separators=(",", ":")).encode()

    def units(self, num_prompt: int) -> int:
        """Words or ids of a prompt of so many tokens; at least one."""
        return max(1, round((num_prompt - self.offset) / self.tokens_per_unit))

    def _prompt(self, units: int, rng: np.random.Generator, beginning: Beginning | None) -> str | list[int]:
        known = [] if beginning is None else self._known(beginning, units)
        rest = self._random(units - sum(map(len, known)), rng)
        drawn = np.concatenate([*known, rest]).tolist()
        return drawn if self.token_ids is not None else "".join(drawn)

    def _known(self, beginning: Beginning, units: int) -> list[npt.NDArray[Any]]:
        """The units of the blocks that the trace names: the same name, in the same replay, is the same text. A range
        is one text by the name of its first token, and so long that its units are no more than its tokens."""
        chain, salt = beginning
        if isinstance(chain.ids, range):
            num_units, num_led = (
                min(units, int(num_tokens / self.tokens_per_unit)) for num_tokens in (chain.num_tokens, len(chain.lead))
            )
            led = self._random(num_led, np.random.default_rng([salt, chain.lead.start]))
            return [led, self._random(num_units, np.random.default_rng([salt, chain.ids.start]))[num_led:]]
        each = max(1, round(chain.block_tokens / self.tokens_per_unit))
        sizes = [
            min(each, left) for left in range(min(units, round(chain.num_tokens / self.tokens_per_unit)), 0, -each)
        ]
        named = zip(chain.ids, sizes, strict=False)
        return [self._random(size, np.random.default_rng([salt, name])) for name, size in named]

    def _random(self, units: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        return rng.choice(_LETTERS, units) if self.token_ids is None else rng.integers(*self.token_ids, units)

    @property
    def note(self) -> str:
        """In words, for the table and the manifest."""
        each = f"{self.tokens_per_unit:.4g} tokens each and {self.offset:.4g} more, by usage"
        prompts = "token ids" if self.token_ids else f"random letters ({each})"
        forced = "".join(f" and {name}" for name in self.forced) or " alone, so that an answer may end early"
        return f"{self.path}; prompts: {prompts}; output lengths asked for by max_tokens{forced}"
