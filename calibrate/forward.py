"""One step of a real model, ready to be timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from calibrate.graphs import DecodeGraphs
from calibrate.grid import Point
from calibrate.kv_cache import Caches, cache_argument
from calibrate.packed import PackedSteps, Part


class OnGpu(NamedTuple):
    """What a GPU needs beyond the forward: its L2 cache evicted before each step; decodes as graphs if asked for."""

    evict: Callable[[], None]
    graphs: DecodeGraphs | None


class Stepper:
    """Runs steps of any point. ``prepare`` builds what the step needs; ``step`` is what the clock goes around.

    ``logits_to_keep``: a serving engine computes logits for the last token of a sequence only, and for a prompt of
    1,024 tokens and a vocabulary of 151,936 the rest alone would take 600 MB.
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401
        caches: Caches,
        seed: int = 0,
        packed: PackedSteps | None = None,
        on_gpu: OnGpu | None = None,
    ) -> None:
        self._on_gpu = on_gpu
        self._model = model
        self._caches = caches
        self._packed = packed
        self._argument = cache_argument(model)
        self._generator = torch.Generator().manual_seed(seed)
        self._forward: Callable[..., Any] = model
        self._inputs: dict[str, Any] = {}

    def prepare(self, point: Point) -> None:
        """Cache and random tokens of ``point``, on the device."""
        self._forward = self._model
        if point.phase == "no_cache":
            inputs: dict[str, Any] = {"use_cache": False, "logits_to_keep": 1}
            shape = point.batch_size, point.num_new_tokens
        elif point.in_table:
            cache = self._caches.shape(point.batch_size, point.num_context_tokens, point.num_new_tokens)
            inputs = {self._argument: cache, "use_cache": True, "logits_to_keep": 1}
            shape = point.batch_size, point.num_new_tokens
        else:
            assert self._packed is not None, "such points are planned only where steps can be packed"
            parts = parts_of(point)
            self._forward = self._packed.forward
            inputs = {self._argument: self._packed.cache, "use_cache": True, **self._packed.prepare(parts)}
            shape = 1, sum(part.num_tokens for part in parts)
        ids = torch.randint(0, self._model.config.vocab_size, shape, generator=self._generator)
        self._inputs = {"input_ids": ids.to(self._model.device), **inputs}
        if self._on_gpu is not None:
            if self._on_gpu.graphs is not None and point.phase == "decode" and point.in_table:
                self._forward = self._replayed(point, self._on_gpu.graphs)
            self._on_gpu.evict()

    def _replayed(self, point: Point, graphs: DecodeGraphs) -> Callable[..., Any]:
        """The decode step of ``point`` as a graph; it takes its inputs from where it was captured."""
        inputs = dict(self._inputs)
        ids = inputs.pop("input_ids")

        def lay_out() -> None:
            self._caches.shape(point.batch_size, point.num_context_tokens, point.num_new_tokens)

        with torch.inference_mode():
            replay = graphs.prepare(point.shape, ids, lay_out, lambda ids: self._model(input_ids=ids, **inputs))
        return lambda **_inputs: replay()

    def step(self) -> None:
        """The forward itself."""
        with torch.inference_mode():
            self._forward(**self._inputs)

    def release(self) -> None:
        """Let go of the last point's cache."""
        self._inputs = {}


def parts_of(point: Point) -> list[Part]:
    """The sequences of a packed step: its prompts and the decodes beside them, or each decode of unequal contexts."""
    if point.phase == "decode":
        return [Part(1, 1, context) for context in point.decode_contexts()]
    prompts = Part(point.batch_size, point.num_new_tokens, point.num_context_tokens)
    if not point.num_decodes:
        return [prompts]
    return [prompts, Part(point.num_decodes, 1, point.num_decode_context_tokens)]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or in this process."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
