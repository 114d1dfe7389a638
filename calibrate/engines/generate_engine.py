"""transformers' ``generate`` on a padded group, one step of it at a time, as ``replay.static`` serves with it.

Its steps are the times between two of its looks at the stopping criteria: the forward over a dynamic cache, which is
copied as it grows, and the work around it in Python. The first step of a call is a prefill and holds what ``generate``
does before; every other one is a decode. A context is not computed but given: a cache of zeros, on which timing does
not depend; two decodes lead to a timed one, as in a group that is under way. A chain of decodes begins as a group does,
with prompts of unequal lengths that are computed: behind them its steps took 3 to 4 % less.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from calibrate.clock import Timing
from calibrate.contention import Reading, read_machine
from calibrate.engines.engine import EngineFacts, StepShape
from calibrate.errors import CalibrationError
from calibrate.kv_cache import cache_argument, measured_kv_bytes_per_token
from calibrate.replay.static import Moments, generate

_LEAD = 2
_AUTO: Any = transformers


class GenerateEngine:
    """Static batching over ``model`` on a CPU; all sequences of a step are alike, as padding makes them."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - a torch module
        self._model = model
        self._argument = cache_argument(model)
        self._tokens = self._mask = torch.zeros(1, 1, dtype=torch.long)
        self._cached = self._timed = self._num_taken = self._num_steps = 0
        self._timings: list[Timing] = []
        self._seen: list[StepShape] = []
        self._hook: Any = None

    def extra_bytes_per_token(self, shapes: Sequence[StepShape]) -> int:
        """A growing cache is copied layer by layer: no more than keys and values again."""
        del shapes
        return measured_kv_bytes_per_token(self._model)

    def start(self, shapes: Sequence[StepShape]) -> EngineFacts:
        """Nothing is allocated beforehand."""
        del shapes
        self._hook = self._model.register_forward_pre_hook(self._see, with_kwargs=True)
        return EngineFacts(
            source=f"transformers generate {transformers.__version__}",
            attention=self._model.config._attn_implementation,
            kv_cache="dynamic",
            kv_bytes_per_token=measured_kv_bytes_per_token(self._model),
            torch_version=torch.__version__,
            transformers_version=transformers.__version__,
            python_version=platform.python_version(),
        )

    def prepare(self, shape: StepShape, num_steps: int = 1) -> None:
        """Note where the group begins, which of its steps is ``shape``, and how many are asked for from it on. Raises
        ``CalibrationError`` for sequences that differ."""
        if len(set(shape)) != 1:
            raise CalibrationError(f"engine: generate pads its sequences to be alike (got {sorted(set(shape))})")
        new, context = shape[0]
        is_decode = new == 1 and context > 0
        self._timed = min(_LEAD, context) if is_decode else 0
        self._cached = context - self._timed if is_decode else context
        self._tokens = torch.zeros(len(shape), self._cached + new, dtype=torch.long)
        self._mask = torch.ones_like(self._tokens)
        if self._tokens.shape[1] > 1:
            self._mask[1:, 0] = 0  # all but the longest prompt are padded, and attention then runs under a mask
        self._num_steps, self._timings = num_steps, []
        if is_decode and num_steps > 1:
            self._begin_group(len(shape), context)

    def step(self) -> Timing:
        """The time of the step. All that are asked for are taken when the first of them is: a call generates up to the
        last and one token more, so that no end of a call is timed."""
        if not self._timings:
            self._generate()
            self._num_taken = 0
        self._num_taken += 1
        return self._timings[self._timed + self._num_taken - 1]

    def computed(self) -> StepShape:
        """What the forward of the step was given: tokens of each row, and tokens in its cache."""
        return self._seen[self._timed + self._num_taken - 1]

    def _begin_group(self, rows: int, width: int) -> None:
        """Prompts from an eighth of ``width`` to all of it, padded on the left, whose prefill the chain follows."""
        self._timed, self._cached = 1, 0
        made = torch.Generator().manual_seed(rows * width)
        self._tokens = torch.randint(self._model.config.vocab_size, (rows, width), generator=made)
        self._mask = torch.ones_like(self._tokens)
        for row in range(1, rows):
            self._mask[row, : width - max(1, width * (8 * rows - 7 * row) // (8 * rows))] = 0

    def _generate(self) -> None:
        self._seen.clear()
        cache = {self._argument: self._make_cache()} if self._cached else {}
        moments = Moments()
        generate(self._model, self._tokens, self._mask, self._timed + self._num_steps + 1, moments, **cache)
        self._timings = moments.timings()

    def read_machine(self) -> Reading | None:
        """It runs in this process."""
        return read_machine()

    def stop(self) -> None:
        """Let go of the model."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    def _see(self, _module: Any, _args: Any, given: dict[str, Any]) -> None:  # noqa: ANN401
        rows, new = given["input_ids"].shape
        cache = given.get(self._argument)
        self._seen.append(((new, 0 if cache is None else int(cache.get_seq_length())),) * rows)

    def _make_cache(self) -> Any:  # noqa: ANN401 - a transformers cache
        config = self._model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        cache = _AUTO.DynamicCache(config=config)
        shape = len(self._tokens), config.num_key_value_heads, self._cached, head_dim
        for layer in range(config.num_hidden_layers):
            keys, values = (torch.zeros(shape, dtype=self._model.dtype, device=self._model.device) for _ in "kv")
            cache.update(keys, values, layer)
        return cache
