"""What a server understands: found out by asking, from the most that helps to the least that will do.

Outputs have a forced length if the server takes ``ignore_eos`` and ``min_tokens``; tokens are counted exactly if it
takes ``stream_options``; prompts have an exact length if it takes token ids. Where it does not, prompts are text of
which usage tells how many tokens it makes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from calibrate.errors import CalibrationError
from calibrate.grid import Point
from calibrate.server.client import COMPLETIONS, Answer, Refused
from calibrate.server.load import Client, GaveUp

_FORCED = ("ignore_eos", "min_tokens")
_USAGE = {"include_usage": True}
_LADDER: tuple[tuple[tuple[str, ...], dict[str, bool]], ...] = (
    (_FORCED, {**_USAGE, "continuous_usage_stats": True}),
    (_FORCED, _USAGE),
    (("ignore_eos",), _USAGE),
    ((), _USAGE),
    ((), {}),
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PROBE = 16


@dataclass(frozen=True)
class Dialect:
    """How to ask: ``forced`` names the fields that force an output's length, ``token_ids`` is the range of ids for
    prompts of ids (``None``: text), ``tokens_per_unit`` and ``offset`` turn a prompt's units into tokens."""

    model_id: str
    forced: tuple[str, ...] = ()
    stream_options: tuple[str, ...] = ()
    token_ids: tuple[int, int] | None = None
    tokens_per_unit: float = 1.0
    offset: float = 0.0

    def body(self, num_prompt: int, num_output: int, rng: random.Random) -> dict[str, Any]:
        """A request of ``num_prompt`` tokens for ``num_output`` more. Prompts are random from their first token on, so
        that no prefix cache knows them."""
        units = self._units(num_prompt)
        body: dict[str, Any] = {
            "model": self.model_id,
            "prompt": self._prompt(units, rng),
            "max_tokens": num_output,
            "temperature": 0,
            "stream": True,
        }
        if "ignore_eos" in self.forced:
            body["ignore_eos"] = True
        if "min_tokens" in self.forced:
            body["min_tokens"] = num_output
        if self.stream_options:
            body["stream_options"] = dict.fromkeys(self.stream_options, True)
        return body

    def reachable(self, points: Iterable[Point]) -> list[Point]:
        """The points with prompt lengths that can be made of whole units; contexts may miss by a unit."""
        return [
            point._replace(num_new_tokens=self._length(point.num_new_tokens)) if point.phase == "prefill" else point
            for point in points
        ]

    def _length(self, num_prompt: int) -> int:
        return round(self.offset + self.tokens_per_unit * self._units(num_prompt))

    def _units(self, num_prompt: int) -> int:
        return max(1, round((num_prompt - self.offset) / self.tokens_per_unit))

    def _prompt(self, units: int, rng: random.Random) -> str | list[int]:
        if self.token_ids is not None:
            return [rng.randrange(*self.token_ids) for _ in range(units)]
        return "".join(f" {rng.choice(_LETTERS)}" for _ in range(units))

    @property
    def note(self) -> str:
        """In words, for the provenance."""
        prompts = "token ids" if self.token_ids else f"random letters ({self.tokens_per_unit:g} tokens each, by usage)"
        forced = "".join(f" and {name}" for name in self.forced) or " alone, so that an answer may end early"
        return f"prompts: {prompts}; output lengths forced by max_tokens{forced}"


async def negotiate(client: Client, model_id: str, vocab_size: int, rng: random.Random) -> Dialect:
    """Find the richest dialect that ``client``'s server answers to. Raises ``CalibrationError``."""
    dialect = await _climb_down(client, model_id, rng)
    # Ids from the middle of the vocabulary: special tokens live at its ends.
    ids = Dialect(model_id, dialect.forced, dialect.stream_options, (vocab_size // 8, vocab_size - vocab_size // 8))
    try:
        told = (await _ask(client, ids, _PROBE, rng)).num_prompt_tokens
    except (Refused, GaveUp):
        return await _gauge_text(client, dialect, rng)
    if told is None or 0 <= told - _PROBE <= 4:  # a server may add a begin-of-text token or two
        offset = float((told or _PROBE) - _PROBE)
        return Dialect(model_id, ids.forced, ids.stream_options, ids.token_ids, offset=offset)
    return await _gauge_text(client, dialect, rng)


async def _climb_down(client: Client, model_id: str, rng: random.Random) -> Dialect:
    refusal: Refused | None = None
    for forced, options in _LADDER:
        dialect = Dialect(model_id, forced, tuple(options))
        try:
            await _ask(client, dialect, _PROBE, rng)
        except Refused as error:
            refusal = error
            if error.status in (401, 403, 404, 405):
                break
        else:
            return dialect
    assert refusal is not None
    raise CalibrationError(f"{client.address}{COMPLETIONS}: {_remedy(refusal)} (got {client.scrub(str(refusal))})")


def _remedy(refusal: Refused) -> str:
    if refusal.status in (401, 403):
        return "must accept our key; give it with --api-key"
    if refusal.status in (404, 405):
        return "must be there, and serve the model that --served-model names"
    return "must answer a plain streaming completion"


async def _gauge_text(client: Client, dialect: Dialect, rng: random.Random) -> Dialect:
    """Tokens per unit and offset from prompts of 16 and 64 units, checked on one of 128."""
    lengths = (_PROBE, 4 * _PROBE, 8 * _PROBE)
    told = [(await _ask(client, dialect, units, rng)).num_prompt_tokens for units in lengths]
    first, second, third = told
    if first is None or second is None or third is None:
        rule = "must tell prompt_tokens in its usage, since it takes no token ids"
        raise CalibrationError(f"{client.address}{COMPLETIONS}: {rule}; the length of prompts is unknown")
    slope = (second - first) / (lengths[1] - lengths[0])
    offset = first - slope * lengths[0]
    if slope <= 0 or abs(offset + slope * lengths[2] - third) > max(2, 0.02 * third):
        rule = "must count prompts of random letters in proportion"
        raise CalibrationError(f"{client.address}{COMPLETIONS}: {rule} (got {told} tokens for {list(lengths)} letters)")
    return Dialect(dialect.model_id, dialect.forced, dialect.stream_options, None, slope, offset)


async def _ask(client: Client, dialect: Dialect, units: int, rng: random.Random) -> Answer:
    [answer] = await client.together([dialect.body(units, 4, rng)])
    return answer
