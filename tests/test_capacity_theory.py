"""Capacity against queueing theory: M/D/1 with a limit on its mean wait, and on the 99th percentile of it.

The closed forms are in ``study_builders``; nothing of the capacity search is in them. Seeds are fixed; the slow tier
counts over many seeds how often the interval covers.
"""

import pytest

from simserve.capacity.cost import Question
from simserve.capacity.row import Asked, capacity_row
from simserve.capacity.search import Effort
from simserve.capacity.slo import parse_slo
from simserve.knee.probe import Probe
from tests.study_builders import (
    md1,
    md1_rate_for_mean_wait,
    md1_rate_for_wait_quantile,
    md1_wait_cdf,
    real_runner,
    service_s,
)

QUEUE = md1(700, seed=5)
SERVICE_S = service_s(QUEUE)
EFFORT = Effort(4, 8, tolerance=0.001)


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    with real_runner(tmp_path_factory.mktemp("points")) as opened:
        yield opened


def capacity(runner, text, effort):
    (variant,) = QUEUE.variants
    return capacity_row(Probe(QUEUE, variant, runner), {}, Asked((parse_slo(text),), Question(), effort))[0]


def test_the_wait_s_distribution_is_right_where_it_is_known():
    """P(no wait) = 1 − ρ; within one service (1 − ρ) e^{λt}; it tends to 1; its mean is Pollaczek and Khinchine's."""
    rate, d = 0.7, 1.0
    assert md1_wait_cdf(rate, d, 0.0) == pytest.approx(0.3)
    assert md1_wait_cdf(rate, d, 0.5) == pytest.approx(0.3 * 2.718281828459045**0.35)
    assert md1_wait_cdf(rate, d, 40.0) == pytest.approx(1, abs=1e-9)
    mean = sum(0.05 * (1 - md1_wait_cdf(rate, d, 0.025 + 0.05 * i)) for i in range(500))
    assert mean == pytest.approx(0.7 / (2 * 0.3), rel=2e-3)
    assert md1_rate_for_mean_wait(0.7 / 0.6, d) == pytest.approx(0.7)


def test_capacity_for_a_mean_wait(runner):
    """ρ D / (2 (1 − ρ)) = limit, at a limit of 0.75 D: ρ = 0.6."""
    limit = 0.75 * SERVICE_S
    row = capacity(runner, f"queue_time_mean={limit!r}", EFFORT)
    truth = md1_rate_for_mean_wait(limit, SERVICE_S)
    assert truth * SERVICE_S == pytest.approx(0.6)
    found = row["capacity"]
    assert found["low"] <= truth <= found["high"]
    assert found["high"] - found["low"] < 0.2 * truth  # narrow enough to be worth something
    assert row["limited_by"] == "queue_time_s.mean"


def test_capacity_for_the_99th_percentile_of_the_wait(runner):
    """Erlang's distribution is 0.99 at the limit of 4 D."""
    limit = 4 * SERVICE_S
    found = capacity(runner, f"queue_time_p99={limit!r}", EFFORT)["capacity"]
    truth = md1_rate_for_wait_quantile(0.99, limit, SERVICE_S)
    assert 0.4 < truth * SERVICE_S < 0.8
    assert found["low"] <= truth <= found["high"]
    assert found["high"] - found["low"] < 0.5 * truth


def test_a_limit_that_binds_close_to_saturation_is_not_settled(runner):
    """A mean wait of 100 services is that of ρ = 200 / 201, where these runs are too short: an interval from what they
    can tell to saturation, which holds the truth and is not a point."""
    limit = 100 * SERVICE_S
    row = capacity(runner, f"queue_time_mean={limit!r}", EFFORT)
    found, truth = row["capacity"], md1_rate_for_mean_wait(limit, SERVICE_S)
    assert row["limited_by"] == "not settled: more requests"
    assert found["low"] < truth < found["high"] and found["high"] - found["low"] > 0.02 * truth


def test_capacity_without_a_limit_that_binds_is_the_saturation_rate(runner):
    """1 / D: an answer of one token has no TPOT, so that no load breaks a limit on it."""
    row = capacity(runner, "tpot_p99=1s", EFFORT)
    assert row["limited_by"] == "saturation"
    assert row["capacity"]["value"] == pytest.approx(1 / SERVICE_S, rel=1e-6)


def test_capacity_close_to_saturation_is_that_of_long_runs(runner):
    """ρ = 0.95, a mean wait of 9.5 D: runs as long as asked for hold it up to saturation, where none is stationary."""
    limit = 9.5 * SERVICE_S
    row = capacity(runner, f"queue_time_mean={limit!r}", Effort(4, 4))
    found, truth = row["capacity"], md1_rate_for_mean_wait(limit, SERVICE_S)
    assert truth * SERVICE_S == pytest.approx(0.95)
    assert row["limited_by"] == "queue_time_s.mean" and found["low"] <= truth <= found["high"]
    assert found["high"] - found["low"] < 0.06 * truth


def test_a_limit_below_the_service_time_has_no_capacity(runner):
    """E2E is at least D: an answer in words, not a crash."""
    row = capacity(runner, f"e2e_p50={0.5 * SERVICE_S!r}", EFFORT)
    assert row["capacity"]["value"] is None and row["limited_by"] == "e2e_s.p50"
    assert "fails even at" in row["reason"] and "2 times its limit" in row["reason"]
    assert row["replicas"] is None and row["output_tokens_per_s"] is None
