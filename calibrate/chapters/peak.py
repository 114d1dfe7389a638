"""The most bytes that torch holds at once during a step.

On CUDA its allocator keeps the count (``torch.cuda.max_memory_allocated``). On a CPU torch's profiler reports every
allocation and release of the CPU allocator, temporaries inside kernels included; their running sum has the peak.
Resident memory of the process would say little: it includes what the allocator of the C library keeps for later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

import torch

CPU_METHOD = "running sum of the allocations and releases that torch's profiler reports for its CPU allocator"
CUDA_METHOD = "torch.cuda.max_memory_allocated, less what the weights take"


def peak_bytes(make: Callable[[], Callable[[], object]], device: str) -> int:
    """Peak above what was allocated before ``make`` builds the step's inputs (its cache among them) and it runs."""
    return _peak_on_cuda(make) if device == "cuda" else _peak_on_cpu(make)


def peak_method(device: str) -> str:
    """How ``peak_bytes`` counts there, in words."""
    return CUDA_METHOD if device == "cuda" else CPU_METHOD


def highest(changes: Iterable[int]) -> int:
    """The highest running sum, 0 at the least."""
    return max(accumulate(changes, initial=0))


def _peak_on_cuda(make: Callable[[], Callable[[], object]]) -> int:
    cuda: Any = torch.cuda
    cuda.synchronize()
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    make()()
    cuda.synchronize()
    return int(cuda.max_memory_allocated() - before)


def _peak_on_cpu(make: Callable[[], Callable[[], object]]) -> int:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        make()()
    results: Any = profiler.profiler
    changes = sorted(_allocations(results.kineto_results.experimental_event_tree()))
    return highest(change for _, change in changes)


def _allocations(events: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """(time, bytes) of every allocation (positive) and release (negative) on the CPU."""
    kind: Any = torch._C._profiler._EventType.Allocation  # the public summary keeps sums per operator, not the course
    for event in events:
        if event.tag == kind and event.extra_fields.device.type == "cpu":
            yield event.start_time_ns, int(event.extra_fields.alloc_size)
        yield from _allocations(event.children)
