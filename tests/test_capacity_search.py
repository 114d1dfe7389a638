"""Roots of pooled curves and the search for them, on curves whose roots are known."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simserve.capacity.root import crossing, pooled, pooled_root
from simserve.capacity.search import Effort, find_capacity
from simserve.knee.load_axis import LoadAxis

OPEN = LoadAxis("workload.arrivals.rate_rps", "", "requests/s", 1.0)
CLOSED = LoadAxis("workload.concurrency", "", "clients", None)
SATURATION = 10.0


def queue(load):
    """Mean wait of M/M/1 that saturates at 10/s, in service times."""
    rho = np.asarray(load) / SATURATION
    return rho / np.maximum(1 - rho, 1e-3)


def exactly(curve, limit=1.0):
    """Used shares without noise, one SLO."""
    return lambda loads, replications, early: np.tile(
        curve(np.array(loads))[None, :, None] / limit, (replications, 1, 1)
    )


def noisy(curve, sd, seed=0):
    """Each replication's curve is off by a lognormal factor, mean 1, the same at every load."""

    def used(loads, replications, early):
        factors = np.exp(np.random.default_rng(seed).normal(-(sd**2) / 2, sd, 1000))[:replications]
        return factors[:, None, None] * curve(np.array(loads))[None, :, None]

    return used


@pytest.mark.parametrize("limit", [0.05, 0.5, 1.0, 4.0, 20.0])
def test_the_capacity_of_a_queue_is_its_root(limit):
    """ρ / (1 − ρ) = L at ρ = L / (1 + L), at low, middling and high load."""
    found = find_capacity(exactly(queue, limit), SATURATION, Effort(), OPEN.distinct)
    assert found.limited_by == "slo"
    assert found.capacity["value"] == pytest.approx(SATURATION * limit / (1 + limit), rel=0.005)


def test_the_interval_covers_the_root_of_the_mean_curve():
    """Of 40 noisy searches at least 34 cover it (95 % expected; 85 % is three errors off)."""
    found = [find_capacity(noisy(queue, 0.2, s), SATURATION, Effort(8, 8), OPEN.distinct) for s in range(40)]
    assert sum(each.capacity["low"] <= SATURATION / 2 <= each.capacity["high"] for each in found) >= 34


def test_replications_double_until_the_interval_is_narrow():
    """Nothing to do without noise; more for a narrower tolerance; never beyond the maximum."""
    assert find_capacity(exactly(queue), SATURATION, Effort(), OPEN.distinct).replications == 4
    counts = [
        find_capacity(noisy(queue, 0.3), SATURATION, Effort(4, 64, tolerance), OPEN.distinct).replications
        for tolerance in (0.2, 0.05, 0.001)
    ]
    assert counts == sorted(counts) and counts[0] < counts[1] <= counts[2] == 64
    found = find_capacity(noisy(queue, 0.3), SATURATION, Effort(4, 64, 0.05), OPEN.distinct).capacity
    assert (found["high"] - found["low"]) / 2 <= 0.05 * found["value"]


def test_the_interval_shrinks_with_replications():
    """16 times as many, at least three times as narrow, over five sets of each."""

    def width(n):
        found = [
            find_capacity(noisy(queue, 0.2, s), SATURATION, Effort(n, n), OPEN.distinct).capacity for s in range(5)
        ]
        return sum(each["high"] - each["low"] for each in found)

    assert width(4) > 3 * width(64)


def test_one_replication_has_a_capacity_and_no_interval():
    """A trace that is replayed as it is."""
    found = find_capacity(exactly(queue), SATURATION, Effort(1, 1), OPEN.distinct)
    assert found.capacity["value"] == pytest.approx(5, rel=0.005)
    assert (found.capacity["low"], found.capacity["high"]) == (None, None)


def test_what_holds_up_to_the_top_is_limited_by_saturation():
    """A limit that no load breaks."""
    found = find_capacity(exactly(queue, 1e4), SATURATION, Effort(), OPEN.distinct)
    assert (found.limited_by, found.capacity["value"]) == ("saturation", None)


def test_what_fails_at_a_hundredth_has_no_capacity():
    """A service time alone beyond the limit."""
    found = find_capacity(exactly(lambda x: 2 + queue(x)), SATURATION, Effort(), OPEN.distinct)
    assert (found.limited_by, found.capacity["value"]) == ("nowhere", None)
    assert found.loads[0] == pytest.approx(0.01 * SATURATION)


def test_the_largest_load_that_holds_is_found_where_latency_falls_first():
    """Static groups fill slowly at low load: a / x fails there, holds in the middle, and fails near saturation."""
    curve = lambda x: 2.0 / x + 0.2 * queue(x)  # noqa: E731 - a formula
    found = find_capacity(exactly(curve), SATURATION, Effort(), OPEN.distinct)
    x = np.linspace(4, 9.99, 100_000)
    assert found.capacity["value"] == pytest.approx(x[curve(x) <= 1][-1], rel=0.01)


def test_the_strictest_of_several_slos_decides():
    """Two curves that cross: the smaller root."""

    def used(loads, replications, early):
        x = np.array(loads)
        return np.tile(np.stack([queue(x) / 4, x / 6], axis=-1), (replications, 1, 1))

    assert find_capacity(used, SATURATION, Effort(), OPEN.distinct).capacity["value"] == pytest.approx(6, rel=0.005)


@pytest.mark.parametrize("limit", [1.5, 7.0, 23.0, 40.0])
def test_clients_are_whole(limit):
    """A closed loop is only asked about whole numbers of clients, and the root lies between two of them."""
    asked = set()

    def used(loads, replications, early):
        asked.update(loads)
        return np.tile(np.array(loads)[None, :, None] / limit, (replications, 1, 1))

    found = find_capacity(used, 64.0, Effort(), CLOSED.distinct)
    assert all(load == int(load) >= 1 for load in asked)
    assert found.capacity["value"] == pytest.approx(limit, rel=0.02)


def test_only_the_look_along_the_axis_may_stop_runs_early():
    """A run that was cut has no quantiles: what the root is made of runs to its end."""
    stopped = []

    def used(loads, replications, early):
        stopped.append((early, len(loads)))
        return exactly(queue)(loads, replications, early)

    find_capacity(used, SATURATION, Effort(), OPEN.distinct)
    assert stopped[0] == (True, 8) and stopped[-1][0] is False


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8), st.floats(0.1, 100))
def test_a_crossing_lies_where_a_rising_curve_passes_one(logs, unit):
    """Between the last load below the limit and the first above it; in any unit of load."""
    logs = sorted(logs)
    assume(all(b - a > 1e-3 for a, b in itertools.pairwise(logs)))
    loads, used = unit * np.arange(1.0, len(logs) + 1), np.exp(logs)
    root = crossing(loads, used)
    below, above = loads[used <= 1], loads[used > 1]
    assert (not len(below) or root >= below[-1] * (1 - 1e-6)) and (not len(above) or root <= above[0] * (1 + 1e-6))
    assert crossing(loads / unit, used) == pytest.approx(root / unit, rel=1e-6)


def test_a_power_law_is_crossed_exactly():
    """On log scales it is a straight line: x^3 / 27 = 1 at 3, inside the loads and a little outside of them."""
    for loads in ([1.0, 2.0, 4.0, 8.0], [2.9, 3.3], [1.0, 2.0], [4.0, 8.0]):
        x = np.array(loads)
        assert crossing(x, x**3 / 27) == pytest.approx(3, rel=1e-6)


def test_pooling_is_mean_over_replications_then_the_strictest_slo():
    """Not the other way round: two SLOs that are each broken in one of two replications both hold on average."""
    used = np.array([[[1.5, 0.1]], [[0.1, 1.5]]])
    assert pooled(used) == pytest.approx([0.8])


def test_the_mean_of_roots_is_not_the_root_of_the_mean():
    """Why curves are pooled first. A wait of f·ρ/(1 − ρ) with f lognormal of mean 1 is 1 at ρ = 1/2 on average; a
    replication's own root is 1 / (1 + f), whose mean is above 1/2 (Jensen): a t-interval of many settles beside it."""
    factors = np.exp(np.random.default_rng(1).normal(-0.125, 0.5, 2000))
    own = 1 / (1 + factors)
    loads = np.geomspace(0.3, 0.7, 5)
    used = factors[:, None, None] * (loads / (1 - loads))[None, :, None]
    assert own.mean() - 0.5 > 5 * own.std() / math.sqrt(len(own))
    assert pooled_root(loads, used, 1.0, 0)["value"] == pytest.approx(0.5, abs=0.01)
