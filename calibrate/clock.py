"""Timing one step: wall clock, process CPU clock and, on a GPU, a pair of CUDA events.

On a CPU with one thread the step time is the CPU clock: under a busy neighbour it varies by 1–4 % where the wall clock
varied by 100 %. With more threads CPU seconds add up over threads and say nothing of duration, so it is the wall clock.
On a GPU it is the events: they bracket the kernels and the launch gaps between them, on the device's own clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Clock = Literal["process_cpu", "wall", "cuda_events"]


class Timing(NamedTuple):
    """Seconds of one step by each clock; ``cuda_s`` is ``None`` off a GPU, and so is ``host_s``, what the host took to
    launch it: where that is nearly ``wall_s`` the GPU waited for the host."""

    wall_s: float
    cpu_s: float
    cuda_s: float | None = None
    host_s: float | None = None

    def by(self, clock: Clock) -> float:
        """The step time by the clock that was chosen."""
        if clock == "cuda_events" and self.cuda_s is not None:
            return self.cuda_s
        return self.cpu_s if clock == "process_cpu" else self.wall_s


Timer = Callable[[Callable[[], object]], Timing]


def choose_clock(device: str, threads: int) -> tuple[Clock, str]:
    """The clock whose reading is the step time, and why, in words for the provenance."""
    if device == "cuda":
        return "cuda_events", "events recorded around each step on the stream, synchronised before and after"
    if threads == 1:
        return "process_cpu", "one thread: CPU time is the step time without what neighbours took; wall_s is kept too"
    return "wall", f"{threads} threads: CPU seconds add up over threads; run with 1 for a clock neighbours cannot move"


def time_on_cpu(step: Callable[[], object]) -> Timing:
    """Time a step that ends when the call returns."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    cpu = time.process_time() - cpu
    return Timing(time.perf_counter() - wall, cpu)


def time_on_cuda(step: Callable[[], object]) -> Timing:
    """Time a step whose kernels run after the call returns. The device is idle when the first event is recorded, so
    that the interval starts with the launch of the first kernel and ends with the end of the last."""
    import torch

    cuda: Any = torch.cuda  # its events are untyped in some versions
    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    cuda.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    begin.record()
    step()
    end.record()
    host_s = time.perf_counter() - wall
    end.synchronize()
    cpu = time.process_time() - cpu
    return Timing(time.perf_counter() - wall, cpu, begin.elapsed_time(end) / 1e3, host_s)
