"""CUDA: decode steps replayed as graphs, and inputs that are not in the L2 cache from the step before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WARM_UPS = 3


class DecodeGraphs:
    """Captures a decode step once and replays it, as serving engines do: one launch instead of one per kernel.

    The in-place cache is static memory, so a graph keeps its addresses. Only the last shape's graph is kept: a graph
    holds the memory of its intermediate results. Replaying writes the same cache slots again, which costs the same.
    """

    def __init__(self) -> None:
        self._shape: object = None
        self._ids: torch.Tensor | None = None
        self._replay: Callable[[], object] | None = None

    def prepare(
        self, shape: object, ids: torch.Tensor, lay_out: Callable[[], object], run: Callable[[torch.Tensor], object]
    ) -> Callable[[], object]:
        """What replays ``run(ids)`` for a step of ``shape``. ``lay_out`` goes before each ``run``, which moves the
        cache's count of tokens on; in a replay only the device runs, so nothing moves."""
        if self._replay is None or self._shape != shape or self._ids is None:
            self._replay = None  # before the next capture, so that its memory can be used again
            self._ids, self._shape = ids.clone(), shape
            self._replay = self._capture(self._ids, lay_out, run)
        self._ids.copy_(ids)
        return self._replay

    def _capture(
        self, ids: torch.Tensor, lay_out: Callable[[], object], run: Callable[[torch.Tensor], object]
    ) -> Callable[[], object]:
        """Warm up beside the main stream, as capturing asks, then capture."""
        cuda: Any = torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(_WARM_UPS):
                lay_out()
                run(ids)
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        lay_out()
        with cuda.graph(graph):
            run(ids)
        replay: Callable[[], object] = graph.replay
        return replay


class L2Eviction:
    """Writes more than the L2 cache holds, so that a step finds its inputs where a server's step does: in memory. The
    two buffers are written in turn."""

    def __init__(self, l2_bytes: int, device: Any) -> None:  # noqa: ANN401 - a torch device
        self._buffers = [torch.zeros(max(1, l2_bytes), dtype=torch.uint8, device=device) for _ in range(2)]
        self._count = 0

    def evict(self) -> None:
        """Between steps, outside the timed region."""
        self._count += 1
        for buffer in self._buffers:
            buffer.fill_(self._count % 251)


def make_eviction(device: str) -> Callable[[], None]:
    """Evicts the L2 cache of the GPU; does nothing off one."""
    if device != "cuda":
        return lambda: None
    properties: Any = torch.cuda.get_device_properties(0)
    return L2Eviction(int(getattr(properties, "L2_cache_size", 0) or 64 << 20), device).evict
