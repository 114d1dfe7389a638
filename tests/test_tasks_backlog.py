"""Does the backlog grow: false alarms below capacity, power beyond it, and what is never called growth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from simserve.tasks.backlog import MIN_REQUESTS, BacklogTest, backlog_test, growth_test, pooled
from simserve.tasks.task import run_task
from tests.sweep_builders import queue, task

NEVER = np.iinfo(np.int64).max


def _queue(utilization, n, seed, num_before=0):
    """An M/D/1 queue by Lindley's recursion, in microseconds: when each arrives, and when these and ``num_before`` who
    stood there at the start leave the line."""
    gaps = np.random.default_rng(seed).exponential(1 / utilization, n)
    waits = np.full(n, float(num_before))
    for i in range(1, n):
        waits[i] = max(0.0, waits[i - 1] + 1 - gaps[i])
    arrival = np.cumsum(gaps) - gaps[0]
    left = np.concatenate([np.arange(num_before), arrival + waits])
    return np.rint(arrival * 1e6).astype(np.int64), np.rint(left * 1e6).astype(np.int64)


def test_a_stable_queue_gives_no_false_alarm():
    """ρ = 0.9, 400 independent runs: a test at 5 % would alarm 20 times; telescoping makes it far more careful (at most
    4), and the verdict, at 0.1 % and 1 % growth, never comes."""
    tests = [backlog_test(*_queue(0.9, 1000, seed)) for seed in range(400)]
    assert sum(test.p_value < 0.05 for test in tests) <= 4
    assert not any(test.grows for test in tests)


@pytest.mark.parametrize("num_before", [0, 500])
def test_at_critical_load_the_level_is_kept(num_before):
    """ρ = 1 from an empty line, the most that filling up can do: a test at 5 % alarms in 5 % of 400 runs (at most 38,
    4 σ above 20), and the verdict in 0.1 %. With 500 in line already it is half as likely (2.5 %: 10, at most 23)."""
    tests = [backlog_test(*_queue(1.0, 1000, seed, num_before)) for seed in range(400)]
    assert 2 <= sum(test.p_value < 0.05 for test in tests) <= (23 if num_before else 38)
    assert sum(test.grows for test in tests) <= 3


@pytest.mark.parametrize(("utilization", "n"), [(0.9, 200), (0.95, 200), (0.97, 200), (0.98, 400)])
def test_filling_up_to_a_steady_line_is_no_growth_however_many_replications(utilization, n):
    """From an empty start the line grows on average at any stable load; forty replications are sure of that, and still
    do not call it growth. Ten studies of forty: no verdict, and p does not sink towards 0 (a median above 5 %)."""
    tests = [backlog_test(*_queue(utilization, n, seed)) for seed in range(400)]
    studies = [pooled(tests[i : i + 40]) for i in range(0, 400, 40)]
    assert np.mean([each.growth for each in studies]) > 0
    assert not any(each.grows for each in studies)
    assert np.median([each.p_value for each in studies]) > 0.05


@pytest.mark.parametrize(("utilization", "n", "replications", "least"), [(1.05, 2000, 5, 7), (1.2, 200, 5, 9)])
def test_a_slight_overload_is_found_by_replications(utilization, n, replications, least):
    """Power, measured over 800 studies: 84 % and 99 %; of ten studies at least 7 and 9 (1 of 20 seeds fails)."""
    tests = [backlog_test(*_queue(utilization, n, seed)) for seed in range(10 * replications)]
    found = [pooled(tests[i : i + replications]).grows for i in range(0, len(tests), replications)]
    assert sum(found) >= least


@pytest.mark.parametrize("utilization", [1.5, 2.0, 4.0])
def test_overload_is_found_and_its_growth_is_measured(utilization):
    """Of arrivals at ρ > 1 the share 1 − 1/ρ stays behind; all of 40 runs are found growing."""
    tests = [backlog_test(*_queue(utilization, 1000, seed)) for seed in range(40)]
    assert all(test.grows for test in tests)
    assert np.mean([test.growth for test in tests]) == pytest.approx(1 - 1 / utilization, abs=0.02)


def test_more_replications_find_less_growth():
    """ρ = 1.05 is not proved by one run of 2,000 requests, but by twenty of them."""
    tests = [backlog_test(*_queue(1.05, 2000, seed)) for seed in range(20)]
    assert sum(test.grows for test in tests) <= 4
    assert pooled(tests).grows
    assert pooled(tests).growth == pytest.approx(1 - 1 / 1.05, abs=0.02)


@pytest.mark.parametrize("n", [2, 5, 40])
def test_pooled_is_the_chance_of_a_sum_of_half_normals(n):
    """n runs of the same batches: their growth as before, and p that of a sum of n absolute normals as great, counted
    in 200,000 such sums."""
    rng = np.random.default_rng(n)
    arrived, left = np.full(2000, 100), np.full(2000, 100)
    for share in (0.7, 1.0, 1.3):
        left = 100 - rng.normal(0, 10, 2000)
        left -= left.mean() - 100 + share * left.std(ddof=1) / np.sqrt(2000)
        one = growth_test(arrived, left)
        both = pooled([one] * n)
        sums = np.abs(rng.standard_normal((200_000, n))).sum(axis=1)
        assert both.growth == pytest.approx(one.growth)
        assert both.p_value == pytest.approx(np.mean(sums > share * n), rel=0.03, abs=0.003)


def test_what_was_not_tested_in_every_run_is_not_tested():
    """Those that were may differ from the others in just this: where nobody gave up, they had luck."""
    one = growth_test(np.full(20, 100), np.arange(20))
    assert one.is_tested
    assert pooled([]) == pooled([BacklogTest()]) == pooled([one, BacklogTest()]) == BacklogTest()
    assert not BacklogTest().is_tested


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 200), min_size=20, max_size=20))
def test_the_p_value_of_one_run_is_scipy_s_two_sided_t_test(left):
    """Against scipy.stats.ttest_1samp, an independent implementation; a line that shrinks is no evidence at all."""
    shares = (100 - np.array(left)) / 100
    found = growth_test(np.full(20, 100), np.array(left))
    if np.ptp(shares) > 1e-9:
        wanted = ttest_1samp(shares, 0).pvalue if shares.mean() > 0 else 1.0
        assert found.p_value == pytest.approx(wanted, abs=1e-12)
    else:
        assert found.p_value == (0.0 if shares[0] > 0 else 1.0)


def test_filling_the_slots_is_not_growth():
    """Long answers in enough slots: nobody has finished yet, and nobody waits either."""
    arrival = np.arange(1000) * 1000
    assert backlog_test(arrival, arrival + 1).growth == pytest.approx(0, abs=0.001)
    assert not backlog_test(arrival, arrival + 1).grows


def test_a_server_that_lets_nobody_in_grows():
    """All wait to the end: every batch leaves all of itself behind."""
    test = backlog_test(np.arange(1000) * 1000, np.full(1000, NEVER))
    assert test.growth == 1.0
    assert test.grows


def test_too_few_and_all_at_once_are_never_growth():
    """Fewer than two per batch, or no time between arrivals: no rate is offered, so none is too much."""
    few = np.arange(MIN_REQUESTS - 1) * 1000
    assert backlog_test(few, np.full(len(few), NEVER)) == BacklogTest()
    assert backlog_test(np.zeros(1000, np.int64), np.full(1000, NEVER)) == BacklogTest()


def _runs(utilization, seeds, **options):
    data = queue(utilization, 2000)
    return [run_task(task(data, seed, **options))["continuous-paged"] for seed in seeds]


def test_a_hopeless_run_is_ended_early_and_a_stable_one_never():
    """ρ = 2: ended at the first checkpoint, 40 % of 2,000 (the engine looks when it stops, a few arrivals later); ρ =
    0.9, 30 seeds: never."""
    for measures in _runs(2.0, range(5)):
        assert measures["backlog"]["stopped_early"]
        assert measures["backlog"]["grows"]
        assert measures["backlog"]["growth"] == pytest.approx(0.5, abs=0.05)
        num_arrived = measures["num_requests"] + measures["num_warmup_cut"]
        assert 800 <= num_arrived < 820
    assert not any(measures["backlog"]["stopped_early"] for measures in _runs(0.9, range(30)))


def test_stopping_early_changes_no_verdict_and_little_throughput():
    """ρ = 2 with and without: both grow, both serve 1 / service time."""
    (early,), (whole,) = _runs(2.0, [0]), _runs(2.0, [0], stop_early=False)
    assert not whole["backlog"]["stopped_early"]
    assert early["backlog"]["grows"] and whole["backlog"]["grows"]
    assert early["requests_per_s"] == pytest.approx(whole["requests_per_s"], rel=0.01)
    assert early["backlogged_rps"] == pytest.approx(whole["backlogged_rps"], rel=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": {"concurrency": 64}},
        {"workload": {"clients": {"timeout_s": 0.01}}},
        {"engine": {"max_queued_requests": 2}},
        {"workload": {"arrivals": {"process": "all_at_once"}}},
    ],
)
def test_loads_that_bound_themselves_are_not_stopped_and_do_not_grow(changes):
    """Closed loops, people who leave, a bounded queue, one batch: however loaded, no line grows for ever, so that not
    growing means nothing: not tested."""
    data = queue(3.0, 400)
    for section, keys in changes.items():
        data[section] = {**data[section], **keys}
    if "concurrency" in data["workload"]:
        del data["workload"]["arrivals"]
    backlog = run_task(task(data))["continuous-paged"]["backlog"]
    assert not backlog["grows"]
    assert not backlog["stopped_early"]
    assert backlog["num_batches"] == 0


def test_a_limit_that_never_comes_to_bear_bounds_nothing():
    """Clients who would wait an hour, a queue that could hold a thousand: the line is tested, and grows at ρ = 3."""
    data = queue(3.0, 400, clients={"timeout_s": 3600})
    data["engine"]["max_queued_requests"] = 1000
    assert run_task(task(data))["continuous-paged"]["backlog"]["grows"]
