"""What is cut from the front of a run before it is measured, and that cutting it does not bend what is measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.scenario import parse_scenario
from simserve.simulate import prepare
from simserve.tasks.task import Task, run_task
from simserve.tasks.warmup import SHARE, WarmupRule, num_warmup, warmup_rule
from tests.sweep_builders import queue

AUTO = WarmupRule(SHARE, True)


@given(st.integers(2, 10_000), st.floats(0, 1))
def test_at_most_half_is_cut(n, share):
    """What is left is at least what was cut."""
    cut = num_warmup(WarmupRule(share, True), np.arange(n))
    assert 0 <= cut <= n // 2
    assert cut == min(int(share * n), n // 2)


def test_requests_that_all_come_at_once_have_no_warm_up():
    """No time passes between their arrivals, so none is early."""
    assert num_warmup(AUTO, np.zeros(1000, np.int64)) == 0
    assert num_warmup(AUTO, np.zeros(0, np.int64)) == 0


def test_the_rule_is_for_long_generated_workloads():
    """500 requests are a steady state, 499 a batch that is wanted whole; a share given by the user holds for both."""
    long, short = (prepare(parse_scenario(queue(0.5, n))) for n in (500, 499))
    assert warmup_rule("auto", long) == AUTO
    assert warmup_rule("auto", short) == WarmupRule(0.0, False)
    assert warmup_rule(0.2, short) == WarmupRule(0.2, True)
    assert num_warmup(warmup_rule(0.2, short), np.arange(100)) == 20
    assert warmup_rule(0, long) == WarmupRule(0.0, False)


def test_the_cut_takes_the_empty_start_away_and_bends_nothing():
    """M/D/1 at ρ = 2/3 starts empty. Its mean wait, by Pollaczek and Khinchine ρ D / (2 (1 − ρ)), is met within three
    standard errors over 24 replications of 2,000 requests."""
    rho, wait_s = 2 / 3, 1.0
    data = queue(rho, 2000)
    runs = [run_task(Task(data, "queue", ".", seed)) for seed in range(24)]
    (name,) = runs[0]
    waits = np.array([run[name]["queue_time_s"]["mean"] for run in runs])
    service_s = np.mean([run[name]["e2e_s"]["mean"] - run[name]["queue_time_s"]["mean"] for run in runs])
    wait_s = rho * service_s / (2 * (1 - rho))
    assert waits.mean() == pytest.approx(wait_s, abs=3 * waits.std(ddof=1) / np.sqrt(len(waits)))
