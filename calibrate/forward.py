"""One step of a real model, ready to be timed."""

from __future__ import annotations

from typing import Any

import torch

from calibrate.grid import Point
from calibrate.kv_cache import Caches, cache_argument


class Stepper:
    """Runs steps of any point. ``prepare`` builds what the step needs; ``step`` is what the clock goes around.

    ``logits_to_keep=1``: a serving engine computes logits for the last token of a row only, and for a prompt of 1,024
    tokens and a vocabulary of 151,936 the rest alone would take 600 MB.
    """

    def __init__(self, model: Any, caches: Caches, seed: int = 0) -> None:  # noqa: ANN401
        self._model = model
        self._caches = caches
        self._argument = cache_argument(model)
        self._generator = torch.Generator().manual_seed(seed)
        self._inputs: dict[str, Any] = {}

    def prepare(self, point: Point) -> None:
        """Cache and random tokens of ``point``, on the device."""
        shape = point.batch_size, point.num_new_tokens
        ids = torch.randint(0, self._model.config.vocab_size, shape, generator=self._generator).to(self._model.device)
        cache = self._caches.shape(point.batch_size, point.num_context_tokens, point.num_new_tokens)
        self._inputs = {"input_ids": ids, self._argument: cache}

    def step(self) -> None:
        """The forward itself."""
        with torch.inference_mode():
            self._model(**self._inputs, use_cache=True, logits_to_keep=1)

    def release(self) -> None:
        """Let go of the last point's cache."""
        self._inputs = {}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or in this process."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
