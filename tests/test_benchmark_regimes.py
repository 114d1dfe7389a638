"""The regimes of `make bench` are what their names say, and in each the engine that skips records what the one that
steps does."""

import multiprocessing

import numpy as np
import pytest

from simserve.step_time.stretch import NS_PER_S
from tests.benchmarks.cases import Case, measure, regime_named, run_case, timeouts_per_s
from tests.benchmarks.regimes import REGIMES, lognormal
from tests.benchmarks.speed import cases, tables
from tests.test_compiled import differences

NAMES = [regime.name for regime in REGIMES]
NUM = 400


def runnable(name):
    """The regime's name, where its data is here."""
    if missing := regime_named(name).missing:
        pytest.skip(missing)
    return name


@pytest.fixture(params=NAMES)
def regime(request):
    return runnable(request.param)


def test_skipping_records_what_stepping_does(regime):
    """INV-7 in every regime, on a slice that is short enough to step: every column, count and span is equal."""
    number = 40 if regime.startswith("prefix-heavy") else NUM
    case, table = Case(regime, number), regime_named(regime).table(number)
    assert not differences(run_case(case, table), run_case(case, table, fast_forward=False))


@pytest.mark.parametrize("policy", ["static", "continuous"])
@pytest.mark.parametrize("allocator", ["contiguous", "paged"])
def test_every_policy_and_allocator_serves_every_regime(regime, policy, allocator):
    """Nobody is refused, everybody finishes: the times of all pairs are times of the same work."""
    requests = run_case(Case(regime, 150, "python", policy, allocator)).requests
    table = regime_named(regime).table(150)
    assert (requests.num_emitted_tokens == table.num_output_tokens).all()


def test_requests_are_as_long_and_as_far_apart_as_they_say():
    """Means of 40,000 draws within five standard errors; no length below one."""
    table = lognormal(40_000, prompt=500.0, output=100.0, rate_rps=8.0)
    for lengths, mean in ((table.num_prompt_tokens, 500), (table.num_output_tokens, 100)):
        assert lengths.mean() == pytest.approx(mean, abs=5 * lengths.std() / 200)
        assert lengths.min() >= 1
    gaps = np.diff(table.arrival_ns) / NS_PER_S
    assert gaps.mean() == pytest.approx(1 / 8, rel=5 / 200)


def test_a_longer_run_of_a_regime_has_as_dense_arrivals(regime):
    """Growth is measured on more of the same: the first half of a run arrives in about half its time."""
    if regime.startswith("prefix-heavy"):
        pytest.skip("a trace is what it is")
    arrivals = regime_named(regime).table(4000).arrival_ns
    assert arrivals[1999] / arrivals[-1] == pytest.approx(0.5, abs=0.05)


def test_the_memory_bound_regime_preempts_by_the_hundred_and_others_never():
    """So the regimes differ in what loads the engine."""
    preemptions = {name: run_case(Case(name, 2000)).num_preemptions for name in NAMES if not name.startswith("prefix")}
    assert preemptions.pop("memory-bound") > 100
    assert not any(preemptions.values())


def test_only_overload_leaves_the_last_to_wait():
    """At twice what is served the queue grows all along; at 90 % the last tenth waits as long as the tenth before."""

    def waits(name):
        requests = run_case(Case(name, 4000)).requests
        return (requests.first_scheduled_ns - requests.arrival_ns) / NS_PER_S

    overload, near = waits("overload"), waits("near saturation")
    assert overload[-400:].mean() > 1.5 * overload[1600:2000].mean() > 10
    assert near[-400:].mean() < 5


def test_the_prefix_heavy_regime_finds_what_others_computed():
    """Mooncake's paper: prompts of a conversation begin as others did; after 2,000 requests a tenth of all is found."""
    records = run_case(Case(runnable("prefix-heavy"), 2000))
    assert records.num_found_tokens > 0.1 * records.num_looked_up_tokens


def test_a_case_is_measured_in_a_process_of_its_own():
    """What it counts is its own; no process is left; this one holds none of its memory."""
    cost = measure(Case("quarter load", 300), min_seconds=0.0)
    records = run_case(Case("quarter load", 300))
    assert (cost.num_requests, cost.num_steps) == (300, records.num_steps)
    assert 20e6 < cost.peak_rss_bytes < 4e9
    assert cost.requests_per_s * cost.run_s == pytest.approx(300)
    assert cost.timeouts_per_request == pytest.approx(cost.timeouts_per_s * cost.run_s / 300)
    assert not multiprocessing.active_children()


def test_the_yardstick_is_a_rate():
    """SimPy passes between a hundred thousand and fifty million timeouts a second on any machine in use."""
    assert 1e5 < timeouts_per_s() < 5e7


def test_every_case_has_its_cell():
    """Made-up costs come out where they belong, in whole tables; what was not run is named or left empty."""
    wanted = cases(100)
    assert len(set(wanted)) == len(wanted)
    cost = measure(Case("quarter load", 20), min_seconds=0.0)
    printed = list(tables(dict.fromkeys(wanted, cost), 100))
    rows = [line for line in printed if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)
    assert sum(line.startswith("| near saturation |") for line in rows) == 2
    assert sum(line.startswith("| near saturation: ") for line in rows) == 2
    assert not any("|  |" in line for line in rows if "near saturation" in line)
