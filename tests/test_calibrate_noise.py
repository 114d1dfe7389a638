"""Noise within and between runs, drift of the anchor, and intervals that hold both."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from calibrate.grid import Point
from calibrate.measure import Measurement
from calibrate.noise import PRIOR_RUNS, PRIOR_SHARED, make_drift, make_noise
from calibrate.plan import Plan, choose_anchor
from calibrate.profile_file import assemble
from simserve.model_spec import load_model_spec
from simserve.step_time.draws import ProfileDraws
from simserve.step_time.profile_schema import KvBytes, Profile, Sample
from tests.profile_builders import affine, make_point, make_profile, make_provenance, make_sample
from tests.test_calibrate_measure import POINTS, FakeDevice, run

WITHIN, SHARED, PER_POINT = 0.02, 0.1, 0.03
GRID = [make_point(ph, row, c) for ph, row, c in product(("prefill", "decode"), (1, 4, 16, 64), (1, 128, 1024))]
HELD = [make_point("decode", row, 300, True) for row in range(2, 40)]


def measured(rng: np.random.Generator, points: list[Point], session: int = 0, repeats: int = 5) -> list[Sample]:
    """Samples of a run on a machine whose noise is known: a factor of the run, of each point, of each sample."""
    shared = SHARED * rng.standard_normal()
    samples = []
    for point in points:
        centre = affine(point.row, point.num_context_tokens) * np.exp(shared + PER_POINT * rng.standard_normal())
        for _ in range(repeats):
            seconds = float(centre * np.exp(WITHIN * rng.standard_normal()))
            samples.append(make_sample(point, seconds).model_copy(update={"session": session}))
    return samples


def calibrated(rng: np.random.Generator) -> Profile:
    """A profile of one run, its held-out points measured again in another."""
    samples = measured(rng, GRID + HELD) + measured(rng, HELD, session=1)
    spec = load_model_spec("tiny")
    kv = KvBytes(measured=512, formula=512)
    return assemble("p", make_provenance(spec), kv, Measurement(samples), 1.0)[0]


def test_noise_is_told_apart() -> None:
    """On a machine of known noise: within a run, and of each point between runs, each found to a fifth. What a run
    shares rests on one difference and the prior, so it is the prior pooled with it."""
    samples = measured(np.random.default_rng(1), HELD * 4) + measured(np.random.default_rng(2), HELD * 4, 1)
    noise = make_noise(samples, "process_cpu")
    assert noise.num_sessions == 2 and "measured again" in noise.basis
    shifted = [
        s.model_copy(update={"session": 1, "cpu_s": s.cpu_s * 1.25}) for s in measured(np.random.default_rng(1), HELD)
    ]
    exact = make_noise(measured(np.random.default_rng(1), HELD) + shifted, "process_cpu")
    assert exact.within_run == pytest.approx(WITHIN, rel=0.2)
    assert exact.per_point == pytest.approx(0.0, abs=1e-12)
    busy = [s.model_copy(update={"dirty": True}) for s in measured(np.random.default_rng(1), HELD) + shifted]
    assert make_noise(busy, "process_cpu") == exact  # a machine that is always busy has noise too
    pooled = (PRIOR_RUNS * PRIOR_SHARED**2 + np.log(1.25) ** 2 / 2) / (PRIOR_RUNS + 1)
    assert exact.shared == pytest.approx(pooled**0.5)
    found = make_noise(
        measured(np.random.default_rng(3), HELD) + measured(np.random.default_rng(4), HELD, 1), "process_cpu"
    )
    assert found.per_point == pytest.approx(PER_POINT, rel=0.5)


def test_one_run_alone_has_the_prior_and_says_so() -> None:
    """Nothing measured between runs: 8 % is assumed, and called a prior."""
    noise = make_noise(measured(np.random.default_rng(1), HELD), "process_cpu")
    assert (noise.shared, noise.per_point, noise.num_sessions) == (PRIOR_SHARED, 0.0, 1)
    assert noise.basis.startswith("a prior of 8%")


def test_two_calibrations_agree_within_their_intervals() -> None:
    """Runs that differ by 10 % as a whole and 3 % at each point: in nineteen of twenty pairs or more the intervals of
    a cell overlap, and each holds its own median; without the share between runs they would not."""
    agree = total = 0
    for seed in range(12):
        first, second = (calibrated(np.random.default_rng((seed, i))) for i in range(2))
        for a, b in zip(first.decode.rows, second.decode.rows, strict=True):
            assert a.low_s and a.high_s and b.low_s and b.high_s
            for i in range(len(a.contexts)):
                assert a.low_s[i] <= a.seconds[i] <= a.high_s[i]
                agree += a.low_s[i] <= b.high_s[i] and b.low_s[i] <= a.high_s[i]
                total += 1
    assert agree / total >= 0.95


def test_draws_are_spread_as_the_noise_says_and_repeat_with_their_seed() -> None:
    """Over many draws the logarithm of a cell has the standard deviation of the run's and the point's factors together;
    a draw loads no samples anew and leaves the measured profile alone."""
    profile = make_profile()
    noise = make_noise(profile.samples, "process_cpu").model_copy(update={"shared": 0.1, "per_point": 0.05})
    draws = ProfileDraws(profile.model_copy(update={"noise": noise}))
    rng = np.random.default_rng(0)
    logs = np.array([np.log(draws.draw(rng).decode.rows[1].seconds) for _ in range(2000)])
    assert logs.std(axis=0) == pytest.approx([np.hypot(0.1, 0.05)] * 3, rel=0.1)
    # What a run shares moves all cells together: correlation 0.1² / (0.1² + 0.05²).
    assert np.corrcoef(logs.T)[0, 2] == pytest.approx(0.8, abs=0.05)
    same = [draws.draw(np.random.default_rng(7)).prefill for _ in range(2)]
    assert same[0] == same[1] != profile.prefill
    assert draws.draw(rng).digest == profile.digest


def test_a_draw_of_wild_samples_still_takes_time() -> None:
    """One sample a hundred times faster than the rest, under a table that says less than their median (as it does where
    cells were pooled along context): every draw is a table of positive times that do not fall along context."""
    profile = make_profile()
    wild = tuple(s.model_copy(update={"cpu_s": s.cpu_s / 100}) if s.order % 2 else s for s in profile.samples)
    rows = tuple(row.model_copy(update={"seconds": (min(row.seconds) / 9,) * 3}) for row in profile.decode.rows)
    pooled = profile.model_copy(update={"samples": wild, "decode": profile.decode.model_copy(update={"rows": rows})})
    draws, rng = ProfileDraws(pooled), np.random.default_rng(0)
    for _ in range(50):
        for row in draws.draw(rng).decode.rows:
            assert row.seconds[0] > 0 and list(row.seconds) == sorted(row.seconds)


def test_the_anchor_is_visited_through_every_round_and_never_fitted() -> None:
    """Four times a round, on top of every point's own samples."""
    anchor = choose_anchor(POINTS)
    assert anchor is not None and anchor.phase == "decode"
    measurement = run(FakeDevice().measurer(Plan(POINTS, 3, 10.0, 1, anchor)))
    visits = [sample for sample in measurement.samples if sample.anchor]
    assert {sample.shape for sample in visits} == {anchor.shape}
    assert len(visits) == 3 * 3 and len(measurement.samples) == 3 * len(POINTS) + len(visits)
    assert len(measurement.of(anchor)) == 3


def test_drift_is_the_change_over_the_run() -> None:
    """An anchor that grows by 1 % of its middle at each of eleven visits has drifted by a tenth; a steady one by
    nothing; one disturbed visit does not count."""
    point = make_point("decode", 4, 128)

    def visit(order: int, seconds: float, dirty: bool = False) -> Sample:
        return make_sample(point, seconds, dirty, order).model_copy(update={"anchor": True})

    growing = make_drift([visit(10 * i, 0.95 + 0.01 * i) for i in range(11)], "process_cpu")
    assert growing is not None and growing.trend == pytest.approx(0.1) and growing.spread == pytest.approx(0.1)
    assert (growing.batch_size, growing.num_context_tokens, growing.num_visits) == (4, 128, 11)
    steady = make_drift([visit(i, 9.0 if i == 2 else 1.0, i == 2) for i in range(5)], "process_cpu")
    assert steady is not None and steady.trend == steady.spread == 0.0
    assert make_drift([visit(0, 1.0)], "process_cpu") is None
