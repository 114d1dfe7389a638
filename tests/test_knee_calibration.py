"""Noise of calibration in the intervals of rates: in, but never shrunk by replications."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from simserve.capacity.cost import Question
from simserve.capacity.find import find_capacities
from simserve.capacity.row import Asked
from simserve.capacity.search import Effort
from simserve.capacity.slo import parse_slo
from simserve.knee.calibration import calibration_spread, widened
from simserve.knee.find import find_knees
from simserve.knee.probe import Probe
from simserve.knee.saturation import open_loop_saturation
from tests.study_builders import FakeRunner, measures, real_runner, study

MEASURED = {"step_time": {"profile": "25m-cpu-fp32"}, "model": "25m"}


def drawn_slower_or_faster(load, replication, task):
    """Replications are alike; a draw of the step times makes the server 2 % slower or faster, by turns."""
    drawn = task.calibration_draw
    mu = 10.0 if drawn is None else 10.0 * (1.02 if drawn % 2 else 0.98)
    overloaded = load is None or load >= mu
    return measures(1e3, backlogged_rps=mu) if overloaded else measures(1 / (1 - load / mu))


def probe(**changes):
    found = study(**changes)
    (variant,) = found.variants
    return Probe(found, variant, FakeRunner(drawn_slower_or_faster))


def test_the_spread_is_that_of_the_draws():
    """± 2 % by turns has a standard deviation of 2 %; a roofline was not measured, and one run has no interval."""
    assert calibration_spread(probe(**MEASURED), None, 8) == pytest.approx(0.02)
    assert calibration_spread(probe(), None, 8) == 0.0
    assert calibration_spread(probe(**MEASURED), None, 1) == 0.0


def test_it_can_be_left_out():
    """--no-calibration-noise: what is left is chance alone, here none; other settings of the study keep the wish."""
    without = replace(study(**MEASURED), calibration_noise=False)
    assert (
        calibration_spread(Probe(without, next(iter(without.variants)), FakeRunner(drawn_slower_or_faster)), None, 8)
        == 0.0
    )
    assert not without.with_settings({"workload.num_requests": 77}).calibration_noise
    assert not without.with_settings({"engine.max_num_seqs": 2}).calibration_noise


@pytest.mark.parametrize("replications", [4, 32])
def test_no_number_of_replications_narrows_it(replications):
    """Without any other noise the saturation rate is 10 ± t · 2 %, all of it calibration: t with a degree of freedom
    for each draw, which tends to 1.96."""
    found = open_loop_saturation(probe(**MEASURED), replications).interval
    half = 0.2 * t.ppf(0.975, replications)
    assert (found["low"], found["high"]) == (pytest.approx(10 - half), pytest.approx(10 + half))
    assert half > 0.392
    assert found["calibration"] == pytest.approx(1.0)


def test_knee_and_capacity_hold_it_too_and_it_is_said():
    """Both get the same relative width, and a note gives the part."""
    document = find_knees(study(**MEASURED), FakeRunner(drawn_slower_or_faster), "e2e_s.mean", 4, 8)
    (row,) = document["variants"].values()
    half = 0.02 * t.ppf(0.975, 4)  # four draws
    assert (row["knee"]["high"] - row["knee"]["low"]) / 2 == pytest.approx(half * row["knee"]["value"], rel=0.01)
    assert any("another calibration" in note and "2.0%" in note for note in document["notes"])
    asked = Asked((parse_slo("ttft_p99=2s"),), Question(), Effort())
    answer = find_capacities(study(**MEASURED), FakeRunner(drawn_slower_or_faster), asked, [{}])
    (found,) = answer["rows"]
    capacity = found["capacity"]
    assert (capacity["high"] - capacity["low"]) / 2 == pytest.approx(half * capacity["value"], rel=0.01)
    assert found["num_simulations"] < 120  # what no replication narrows, none is spent on
    assert any("another calibration" in note for note in answer["notes"])


def test_draws_of_a_real_profile_move_the_saturation_rate(tmp_path):
    """The shipped CPU profile was measured with noise: a spread above nothing and below a quarter."""
    found = study(workload__num_requests=60, **MEASURED)
    with real_runner(tmp_path) as runner:
        (variant,) = found.variants
        spread = calibration_spread(Probe(found, variant, runner), None, 4)
    assert 0 < spread < 0.25


interval = st.tuples(st.floats(1, 100), st.floats(0, 1), st.floats(0, 1))


@given(interval, st.floats(0, 0.5))
def test_widening_adds_in_quadrature(ends, spread):
    """Each side: sqrt(chance² + (t σ)²), t with a degree of freedom for each draw; no spread changes nothing, and the
    share lies between 0 and 1."""
    value, below, above = ends
    found = {"value": value, "low": value - below, "high": value + above, "n": 4, "calibration": 0.0}
    wide = widened(found, spread)
    assert wide["value"] - wide["low"] == pytest.approx(math.hypot(below, t.ppf(0.975, 4) * spread * value), abs=1e-9)
    assert wide["high"] - wide["value"] == pytest.approx(math.hypot(above, t.ppf(0.975, 4) * spread * value), abs=1e-9)
    assert 0 <= wide["calibration"] <= 1 + 1e-12
    assert spread > 0 or wide == found


def test_nothing_is_widened_that_has_no_interval():
    """One replication, or no capacity."""
    for value in (None, 3.0):
        found = {"value": value, "low": None, "high": None, "n": 1, "calibration": 0.0}
        assert widened(found, 0.1) == found
