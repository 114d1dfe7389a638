"""Timing a handful of steps fairly: warmed, interleaved, disturbed samples taken again."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from calibrate.clock import Clock, Timer
from calibrate.contention import DIRTY_CPUS, Contention
from simserve.step_time.chapters_schema import Timed

LONG_STEP_S = 0.5  # such a step is warmed once and timed no more often than needed
_DRAWS = 1000
_INTERVAL = (0.05, 0.95)

Key = TypeVar("Key", bound=Hashable)


class Case(NamedTuple):
    """A step: ``prepare`` lays out its inputs untimed, ``run`` is what the clock goes around."""

    prepare: Callable[[], object]
    run: Callable[[], object]


@dataclass(frozen=True)
class Watch:
    """How to time: the timer, whose reading counts, who watches the neighbours, how many clean samples to take."""

    timer: Timer
    clock: Clock
    repeats: int
    seed: int = 0

    def time(self, case: Case) -> float:
        """Seconds of one step."""
        case.prepare()
        gc.disable()
        try:
            return self.timer(case.run).by(self.clock)
        finally:
            gc.enable()

    def time_all(self, cases: Mapping[Key, Case]) -> dict[Key, Timed]:
        """Time every case in rounds of random order, so that drift of the machine spreads over all of them."""
        clean: dict[Key, list[float]] = {key: [] for key in cases}
        dirty: dict[Key, list[float]] = {key: [] for key in cases}
        wanted = dict.fromkeys(cases, self.repeats)
        contention, shuffled = Contention(), random.Random(self.seed)
        for key, case in cases.items():  # two warm-ups: the first step of a shape is up to 20 times slower
            if self.time(case) < LONG_STEP_S:
                self.time(case)
            else:
                wanted[key] = min(self.repeats, 2)
        for _ in range(2 * self.repeats):
            pending = [key for key in cases if len(clean[key]) < wanted[key]]
            shuffled.shuffle(pending)
            for key in pending:
                contention.mark()
                seconds = self.time(cases[key])
                others = contention.others()
                (dirty if others is not None and others > DIRTY_CPUS else clean)[key].append(seconds)
        return {key: summarize(_enough(clean[key], dirty[key]), len(dirty[key])) for key in cases}


def _enough(clean: list[float], dirty: list[float]) -> list[float]:
    """The clean samples; with fewer than two of them, the disturbed ones too."""
    return clean if len(clean) >= min(2, len(clean) + len(dirty)) else clean + dirty


def summarize(samples: list[float], num_disturbed: int, seed: int = 0) -> Timed:
    """Median and its bootstrap interval."""
    values = np.asarray(samples, np.float64)
    draws = np.median(np.random.default_rng(seed).choice(values, (_DRAWS, len(values))), axis=1)
    low, high = np.quantile(draws, _INTERVAL)
    return Timed(
        seconds=float(np.median(values)),
        low_s=float(low),
        high_s=float(high),
        samples=tuple(samples),
        num_disturbed=num_disturbed,
    )
