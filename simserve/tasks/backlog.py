"""Does the backlog grow? A test, not a guess.

Arrivals are cut into equal batches; D is the share of a batch by which the waiting line has grown at its end. Below
capacity D telescopes (what waits now was counted before), so its mean is about zero and its spread overstates the
error: the test is then conservative. Beyond capacity every batch leaves its share behind. Who waits, not who is in the
system, because a server that fills its slots for the first time leaves nobody behind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from simserve.request import IntColumn

NUM_BATCHES = 20
MIN_REQUESTS = 2 * NUM_BATCHES
MAX_P = 0.001
MIN_GROWTH = 0.01  # of the arrivals


@dataclass(frozen=True)
class BacklogTest:
    """``growth`` is the share of the arrivals that stay waiting, ``sd`` its spread between batches, ``p_value`` how
    likely so much growth would be without any, ``grows`` the verdict. A test of too few has no batches and p = 1."""

    growth: float = 0.0
    sd: float = 0.0
    num_batches: int = 0
    p_value: float = 1.0
    grows: bool = False

    @classmethod
    def of(cls, measures: Mapping[str, Any]) -> BacklogTest:
        """The test that ``measures["backlog"]`` holds."""
        backlog = measures["backlog"]
        return cls(**{field.name: backlog[field.name] for field in fields(cls)})

    def as_measures(self, stopped_early: bool) -> dict[str, Any]:
        """As JSON, with whether the run was ended for it."""
        return {**asdict(self), "stopped_early": stopped_early}


def backlog_test(arrival_ns: IntColumn, left_queue_ns: IntColumn) -> BacklogTest:
    """Test requests that arrive in order at ``arrival_ns``. ``left_queue_ns`` is when these and all before them left
    the waiting line: admitted, rejected or gone; the largest integer where they had not.

    Closed loops, where an arrival is an answer to a departure, never grow; nor do requests that all come at once, which
    offer no rate.
    """
    n = len(arrival_ns)
    if n < MIN_REQUESTS or arrival_ns[0] == arrival_ns[-1]:
        return BacklogTest()
    first = np.linspace(0, n - 1, NUM_BATCHES + 1).astype(np.int64)
    times = arrival_ns[first]
    num_left = np.searchsorted(np.sort(left_queue_ns), times, side="right")
    return growth_test(np.diff(first), np.diff(num_left))


def growth_test(num_arrived: IntColumn, num_left: IntColumn) -> BacklogTest:
    """One-sided t-test that the mean of D = (arrived − left) / arrived over batches is above zero."""
    shares = (num_arrived - num_left) / np.maximum(num_arrived, 1)
    return _verdict(float(shares.mean()), float(shares.std(ddof=1)), len(shares), len(shares) - 1)


def pooled(tests: Sequence[BacklogTest]) -> BacklogTest:
    """One test of all batches of several replications."""
    tests = [test for test in tests if test.num_batches]
    if not tests:
        return BacklogTest()
    growth = float(np.mean([test.growth for test in tests]))
    sd = math.sqrt(float(np.mean([test.sd**2 for test in tests])))
    num_batches = sum(test.num_batches for test in tests)
    return _verdict(growth, sd, num_batches, num_batches - len(tests))


def _verdict(growth: float, sd: float, num_batches: int, degrees_of_freedom: int) -> BacklogTest:
    from scipy.special import stdtr

    if sd > 0:
        p_value = float(stdtr(degrees_of_freedom, -growth * math.sqrt(num_batches) / sd))
    else:
        p_value = 0.0 if growth > 0 else 1.0
    return BacklogTest(growth, sd, num_batches, p_value, p_value < MAX_P and growth > MIN_GROWTH)
