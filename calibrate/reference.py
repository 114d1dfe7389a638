"""A fixed piece of work, timed beside measurements that lie minutes apart: how fast the machine is just then.

On a shared host the same step was 5 to 8 % faster or slower a minute later, with nothing else running here. Neither a
calibration nor a run can tell that of itself; the same work timed in both can.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from calibrate.clock import Clock

_ROWS, _WIDTH, _HEIGHT = 8, 3072, 4096  # weights of 48 MiB, as a step of batch 8 streams them: more than caches hold
_WARM_UPS, _REPEATS = 2, 9


def reference_s(clock: Clock, threads: int) -> float | None:
    """Median seconds of it by ``clock``, on so many threads, a tenth of a second in all; none on a GPU,
    whose steps are not this processor's."""
    if clock == "cuda_events":
        return None
    read = time.process_time if clock == "process_cpu" else time.perf_counter
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    weights, states = torch.ones(_HEIGHT, _WIDTH), torch.ones(_ROWS, _WIDTH)
    taken = []
    for _ in range(_WARM_UPS + _REPEATS):
        began = read()
        torch.nn.functional.linear(states, weights)
        taken.append(read() - began)
    torch.set_num_threads(before)
    return median(taken[_WARM_UPS:])
