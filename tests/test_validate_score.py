"""Errors and noise by hand: what is divided by what, over which requests, and which figures a limit holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.distributions import describe
from simserve.errors import ScenarioError
from simserve.records import Records
from simserve.validate.observed import LATENCIES, STATISTICS, figures, observed_records, observed_run
from simserve.validate.score import entry, exceeding, flat, is_beyond, nested, score
from tests.record_builders import Served, add_gaps, records_of
from tests.validate_builders import run_of

POSITIVE = st.floats(1e-6, 1e6)


def observed(arrivals, firsts, lasts, outputs, **known):
    run = run_of(arrivals, firsts, lasts, outputs, **known)
    return observed_run(run, run.table.num_output_tokens)


def everyone(run):
    return np.ones(len(run), bool)


def test_figures_of_two_requests_by_hand():
    """5 tokens from 0.5 to 2.5 s and 3 tokens from 1.5 to 3.5 s: TTFT ½, TPOT ½ and 1, E2E 2½, 8 tokens in 3.5 s."""
    found = figures(run := observed([0, 1], [0.5, 1.5], [2.5, 3.5], [5, 3]), everyone(run))
    assert found["ttft_s.mean"] == found["ttft_s.p99"] == 0.5
    assert found["tpot_s.mean"] == 0.75 and found["tpot_s.p50"] == 0.75 and found["tpot_s.p90"] == pytest.approx(0.95)
    assert found["e2e_s.mean"] == found["e2e_s.p95"] == 2.5
    assert found["makespan_s"] == 3.5
    assert found["throughput.output_tokens_per_s"] == pytest.approx(8 / 3.5)
    assert found["throughput.requests_per_s"] == pytest.approx(2 / 3.5)
    for name in ("itl_s.mean", "mean_batch_size", "num_preemptions"):
        assert found[name] is None


def test_every_statistic_of_every_latency_is_there():
    """Mean and four percentiles of four latencies, two rates, makespan, batch size, preemptions: nothing else."""
    found = figures(run := observed([0], [1], [2], [2]), everyone(run))
    expected = {f"{latency}.{statistic}" for latency in LATENCIES for statistic in STATISTICS}
    rates = {"throughput.output_tokens_per_s", "throughput.requests_per_s", "makespan_s"}
    assert set(found) == expected | rates | {"mean_batch_size", "num_preemptions"}


def test_requests_that_do_not_count_still_load_the_clock():
    """The first arrival is the clock's, whoever it was; tokens and latencies are those of the counted."""
    run = observed([0, 1], [0.5, 1.5], [2.5, 3.5], [5, 3])
    found = figures(run, np.array([False, True]))
    assert found["throughput.output_tokens_per_s"] == pytest.approx(3 / 3.5)
    assert found["tpot_s.mean"] == 1.0


def test_one_token_has_no_tpot():
    """NaN stays out of the mean; with nobody else there is none."""
    assert figures(run := observed([0, 0], [1, 1], [1, 3], [1, 3]), everyone(run))["tpot_s.mean"] == 1.0
    assert figures(run := observed([0], [1], [1], [1]), everyone(run))["tpot_s.mean"] is None


def test_gaps_are_described_by_values_or_by_bins():
    """Measured gaps as they are; ours from bins under 1 % wide, with the exact mean."""
    gaps = np.array([0.01, 0.02, 0.03, 0.5])
    real = observed([0], [1], [2], [5], itl_s=gaps)
    assert real.itl_s == describe(gaps)
    records = records_of(Served(0, 0, 1, 2, 5))
    add_gaps(records, gaps.tolist())
    ours = observed_records(records, 1.5)
    assert ours.itl_s["mean"] == pytest.approx(gaps.mean())
    assert ours.itl_s["p50"] == pytest.approx(0.025, rel=0.3) and ours.itl_s["max"] == 0.5
    assert figures(ours, everyone(ours))["mean_batch_size"] == 1.5


def test_e2e_ends_at_delivery():
    """Under static batching an answer is delivered with its group, on both sides."""
    ours = observed_records(records_of(Served(0, 0, 1, 2, 5, end_s=4)), 1.0)
    found = figures(ours, everyone(ours))
    assert (found["e2e_s.mean"], found["makespan_s"], found["tpot_s.mean"]) == (4.0, 4.0, 0.25)


def test_nothing_ran_at_all():
    """An empty simulation has no gaps and no figures of them."""
    assert observed_records(Records(records_of().requests), 0.0).itl_s is None


@given(POSITIVE, POSITIVE)
def test_an_error_is_predicted_over_measured_less_one(measured, predicted):
    """Signed: minus means that the simulation says less."""
    one = entry([measured], [predicted])
    assert one["error"] == pytest.approx(predicted / measured - 1)
    assert (one["error"] > 0) == (predicted > measured) or one["error"] == 0
    assert one["noise"] is None and one["measured_range"] is None


@pytest.mark.parametrize(
    ("measured", "predicted", "error"), [(0.0, 0.0, 0.0), (0.0, 3.0, None), (None, 1.0, None), (2.0, None, None)]
)
def test_errors_without_a_quotient(measured, predicted, error):
    """0 against 0 is no error; 0 against something has none; nor has what one side lacks."""
    assert entry([measured], [predicted])["error"] == error


def test_noise_is_half_the_range_over_the_mean():
    """Runs of 9, 10 and 14 s: mean 11, range 5, noise 2.5/11; the error is of the mean."""
    one = entry([9.0, 10.0, 14.0], [12.1])
    assert one["noise"] == pytest.approx(2.5 / 11) and one["error"] == pytest.approx(0.1)
    assert one["measured_range"] == [9.0, 14.0]
    assert entry([3.0, 3.0], [3.0]) == {
        "measured": 3.0, "predicted": 3.0, "error": 0.0, "noise": 0.0, "measured_range": [3.0, 3.0],
    }  # fmt: skip


@given(st.lists(POSITIVE, min_size=2, max_size=6), st.floats(0.1, 10))
def test_scaling_both_sides_changes_no_error_and_no_noise(runs, factor):
    """Errors are relative: in another unit they are the same."""
    one, other = entry(runs, [1.0]), entry([factor * value for value in runs], [factor])
    assert other["error"] == pytest.approx(one["error"]) and other["noise"] == pytest.approx(one["noise"], abs=1e-12)


def test_draws_of_the_calibration_give_a_range_around_the_prediction():
    """The middle 90 % of 0 to 20: 1 to 19; a single draw gives none, and changes no error."""
    entries = score([{"makespan_s": 10.0}], [{"makespan_s": 10.0}], [{"makespan_s": float(i)} for i in range(21)])
    assert entries["makespan_s"]["predicted_range"] == pytest.approx([1.0, 19.0])
    assert entries["makespan_s"]["error"] == 0.0 and entries["makespan_s"]["measured_range"] is None
    assert score([{"a": 1.0}], [{"a": 1.0}], [{"a": 2.0}])["a"]["predicted_range"] is None


def test_the_objects_of_the_document_and_back():
    """Dotted names nest, figures without a dot stay at the top, and ``flat`` undoes it."""
    entries = score([{"ttft_s.mean": 1.0, "makespan_s": 2.0}], [{"ttft_s.mean": 1.5, "makespan_s": 1.0}])
    tree = nested(entries)
    assert tree["ttft_s"]["mean"]["error"] == 0.5 and tree["makespan_s"]["error"] == -0.5
    assert flat(tree) == entries


@pytest.mark.parametrize(
    ("error", "noise", "limit", "beyond"),
    [(0.06, None, 0.05, True), (-0.06, None, 0.05, True), (0.05, None, 0.05, False), (0.06, 0.07, 0.05, False),
     (0.08, 0.07, 0.05, True), (0.0, None, 0.0, False)],
)  # fmt: skip
def test_an_error_is_beyond_the_limit_and_the_noise(error, noise, limit, beyond):
    """Whichever of the two is larger decides."""
    assert is_beyond({"measured": 1.0, "predicted": 1 + error, "error": error, "noise": noise}, limit) is beyond


def test_which_figures_a_limit_holds():
    """All but batch size and preemptions; or those named, one or a whole latency; a name that is none is refused."""
    names = ("ttft_s.mean", "ttft_s.p99", "e2e_s.mean", "mean_batch_size", "num_preemptions")
    entries = score([dict.fromkeys(names, 1.0)], [dict.fromkeys(names, 2.0)])
    assert exceeding(entries, 0.05) == list(names[:3])
    assert exceeding(entries, 0.05, ["ttft_s"]) == list(names[:2])
    assert exceeding(entries, 0.05, ["num_preemptions"]) == ["num_preemptions"]
    assert exceeding(entries, 1.0) == []
    with pytest.raises(ScenarioError, match=r"--metric: must be a figure of the validation \(got 'ttft'\)"):
        exceeding(entries, 0.05, ["ttft"])


def test_what_only_one_side_has_is_beyond_any_limit():
    """A run with gaps that the simulation lacks, or preemptions where none were measured; not what nobody noted."""
    lacks = {"measured": 1.0, "predicted": None, "error": None, "noise": None}
    assert is_beyond(lacks, 10.0)
    assert not is_beyond({**lacks, "measured": None, "predicted": 1.0}, 0.0)
    assert is_beyond({"measured": 0.0, "predicted": 3.0, "error": None, "noise": None}, 10.0)
