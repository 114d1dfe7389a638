"""How many CPUs other processes keep busy while a step is timed (Linux; elsewhere unknown, and said so)."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MIN_WINDOW_S = 0.25  # the kernel counts in ticks of 10 ms: over a shorter time the share would be noise
DIRTY_CPUS = 0.2


class Reading(NamedTuple):
    """CPU seconds used so far, by everyone (time stolen from this machine included) and by this process."""

    time_s: float
    busy_s: float
    own_s: float


def read_machine() -> Reading | None:
    """The counters now; ``None`` where there is no ``/proc/stat``."""
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    busy_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return Reading(time.perf_counter(), busy_s, time.process_time())


class Contention:
    """Call ``mark`` before each timed step and ``others`` after it."""

    def __init__(self, read: Callable[[], Reading | None] = read_machine) -> None:
        self._read = read
        self._readings: deque[Reading] = deque()

    def mark(self) -> None:
        """Remember the counters; forget readings older than the window needs."""
        reading = self._read()
        if reading is None:
            return
        self._readings.append(reading)
        while len(self._readings) > 1 and reading.time_s - self._readings[1].time_s >= MIN_WINDOW_S:
            self._readings.popleft()

    def others(self) -> float | None:
        """CPUs kept busy by other processes from before the step (and at least ``MIN_WINDOW_S`` ago, once the run is
        that old) until now; ``None`` when unknown."""
        now = self._read()
        if now is None or not self._readings:
            return None
        first = self._readings[0]
        elapsed_s = now.time_s - first.time_s
        if elapsed_s < MIN_WINDOW_S / 2:
            return None
        return max(0.0, (now.busy_s - first.busy_s) - (now.own_s - first.own_s)) / elapsed_s
