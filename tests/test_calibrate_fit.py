"""Grids, plans, medians, held-out errors and the batch knee: everything between samples and a profile."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.batch_curve import batch_knee, make_batch_curve
from calibrate.errors import CalibrationError
from calibrate.fit import make_table, make_validity, point_medians, require_fittable
from calibrate.grid import Limits, Point, make_axes, make_grid
from calibrate.held_out import held_out_points
from calibrate.held_out_error import held_out_error
from calibrate.memory import fit_points
from calibrate.options import CalibrateOptions, GridSize
from calibrate.plan import Plan, make_plan
from tests.profile_builders import affine, make_point, make_sample
from tests.profile_builders import make_table as table_of

GRIDS = [(size, on_gpu) for size in ("quick", "standard", "full") for on_gpu in (False, True)]
FP32 = {1: 0.144, 2: 0.287, 4: 0.263, 8: 0.241, 16: 0.284, 32: 0.376, 64: 0.566}
BF16 = {1: 0.088, 2: 0.092, 4: 0.105, 8: 0.122, 16: 0.154, 32: 0.224, 64: 0.357}


@pytest.mark.parametrize(("curve", "knee"), [(FP32, 32), (BF16, 16)])
def test_the_knee_of_measured_curves(curve: dict[int, float], knee: int) -> None:
    """Qwen2.5-0.5B on two CPU cores: fp32 gains nothing from 1 to 2 and yet its knee is 32, where the doubling still
    gained 1.51; the one to 64 gained 1.33. In bf16 16 gained 1.58 and 32 only 1.38."""
    assert batch_knee(curve) == knee


@given(st.lists(st.floats(1e-3, 10), min_size=1, max_size=8))
def test_the_knee_is_the_last_doubling_that_gained_root_two(values: list[float]) -> None:
    """By the definition, whatever the curve: no later doubling gained √2, and this one did unless none did."""
    curve = {2**i: seconds for i, seconds in enumerate(values)}
    gains = {b: (b / curve[b]) / (b // 2 / curve[b // 2]) for b in curve if b > 1}
    knee = batch_knee(curve)
    assert all(gain < math.sqrt(2) * (1 + 1e-12) for batch, gain in gains.items() if batch > knee)
    assert knee == 1 or gains[knee] >= math.sqrt(2) * (1 - 1e-12)


def test_the_batch_curve_is_against_the_smallest_batch() -> None:
    """tokens/s = batch / seconds; ratios start at 1; the context is the first from 64 on that all rows have."""
    decode = table_of({b: {1: s / 2, 100: s, 500: 2 * s} for b, s in BF16.items()})
    curve = make_batch_curve(decode)
    assert (curve.num_context_tokens, curve.knee) == (100, 16)
    assert [p.tokens_per_s for p in curve.points] == [b / s for b, s in BF16.items()]
    last = curve.points[-1]
    assert last.throughput_ratio == pytest.approx(64 * 0.088 / 0.357)
    assert last.latency_ratio == pytest.approx(0.357 / 0.088)


@pytest.mark.parametrize(("size", "on_gpu"), GRIDS)
def test_held_out_points_are_random_inside_the_grid(size: GridSize, on_gpu: bool) -> None:
    """Their error is the error of interpolation anywhere: each lies inside the measured ranges and is no point of the
    grid; the same seed draws the same points, another seed others. Every row of the grid has at least two contexts."""
    axes = make_axes(size, on_gpu, Limits())
    grid, held = make_grid(size, on_gpu, Limits()), held_out_points(size, axes, 1)
    assert len({p.shape for p in grid + held}) == len(grid) + len(held)
    assert held == held_out_points(size, axes, 1) != held_out_points(size, axes, 2)
    prefill, decode, mixed = axes
    for p in held:
        assert p.held_out
        if p.phase == "mixed":
            assert mixed.num_decodes[0] <= p.num_decodes <= mixed.num_decodes[-1]
            assert mixed.num_new_tokens[0] <= p.num_new_tokens <= mixed.num_new_tokens[-1]
        else:
            ends = prefill if p.phase == "prefill" else decode
            assert 1 <= p.row <= ends.rows[-1] and 0 <= p.num_context_tokens <= ends.contexts[-1]
    for phase in ("prefill", "decode"):
        assert min(Counter(p.row for p in grid if p.phase == phase).values()) >= 2
    kinds = {(p.phase, p.in_table) for p in held}
    assert kinds == {("prefill", True), ("decode", True), ("mixed", False), ("prefill", False), ("decode", False)}


def test_grids_keep_what_their_readers_need() -> None:
    """A batch of one and short contexts are measured, so that no short prompt is an extrapolation; limits cut."""
    full = make_grid("full", False, Limits())
    assert {p.row for p in full if p.phase == "decode"} >= {1, 2, 4, 8, 16, 32, 64}
    assert min(p.num_context_tokens for p in full if p.phase == "decode") == 1
    assert max(p.row for p in full if p.phase == "prefill") == 2048
    cut = make_grid("full", False, Limits(max_batch_size=8, max_context=512, max_prefill_tokens=64))
    assert max(p.row for p in cut if p.phase == "decode") == 8
    assert max(p.row for p in cut if p.phase == "prefill") == 64
    assert max(p.num_context_tokens for p in cut) == 512


@given(st.sampled_from(GRIDS), st.integers(2, 300), st.integers(2, 20_000), st.integers(2, 20_000))
def test_limits_become_the_ends_of_the_grid(grid: tuple[GridSize, bool], batch: int, context: int, tokens: int) -> None:
    """Whatever the limits, none is passed, no point comes twice, and what is left can be fitted."""
    points = make_grid(*grid, Limits(batch, context, tokens))
    assert all(p.num_context_tokens <= context for p in points)
    assert all(p.row <= (batch if p.phase == "decode" else tokens) and p.num_decodes <= batch for p in points)
    assert len({p.shape for p in points}) == len(points)
    require_fittable(points)


def test_points_that_memory_cannot_hold_are_left_out_and_counted() -> None:
    """Half of 2,000 bytes at 10 bytes a token hold 100 tokens: a batch of 4 over 64 does not fit, one of 1 does."""
    points = [make_point("decode", 1, 64), make_point("decode", 4, 64)]
    kept, notes = fit_points(points, 10, 2000)
    assert kept == points[:1]
    assert notes == ["1 of 2 points need a cache of more than 100 tokens, half of the free memory: left out"]
    assert fit_points(points, 10, None) == (points, [])


def test_plans_ask_for_fewer_samples_of_long_steps() -> None:
    """Never more than the repeats, never fewer than two, else what the budget of a point buys."""
    plan = Plan((), 5, 10.0, 0)
    assert [plan.wanted(s) for s in (None, 0.1, 2.0, 3.0, 60.0)] == [5, 5, 5, 3, 2]
    assert make_plan([], CalibrateOptions(repeats=1)).wanted(60.0) == 1
    assert [make_plan([], CalibrateOptions(grid=g)).repeats for g in ("quick", "standard", "full")] == [2, 3, 5]


def test_rounds_depend_on_the_seed_alone() -> None:
    """The same seed visits the points in the same order, which is what lets a run be continued."""
    points = tuple(make_grid("quick", False, Limits()))
    rounds = [list(Plan(points, 2, 1.0, seed).rounds()) for seed in (1, 1, 2)]
    assert rounds[0] == rounds[1] != rounds[2]


def test_a_point_is_the_median_of_its_clean_samples() -> None:
    """Disturbed samples count only where there is nothing else."""
    good, bad = make_point("decode", 1, 1), make_point("decode", 2, 1)
    samples = [make_sample(good, s) for s in (1.0, 5.0, 2.0)] + [make_sample(good, 100.0, dirty=True)]
    samples += [make_sample(bad, s, dirty=True) for s in (3.0, 4.0, 8.0)]
    assert point_medians(samples, "process_cpu") == {good: 2.0, bad: 4.0}
    assert point_medians(samples, "wall") == {good: 3.0, bad: 6.0}


def test_held_out_errors_are_those_of_predicting_without_the_points() -> None:
    """A bilinear device is predicted exactly; a point 10 % off the plane has an error of 10 % of itself."""
    cells: dict[Point, float] = {}
    for phase in ("prefill", "decode"):
        for row in (1, 8, 16):
            cells |= {make_point(phase, row, c): affine(row, c) for c in (0, 100)}
    cells[make_point("decode", 4, 50, held_out=True)] = affine(4, 50)
    cells[make_point("decode", 12, 50, held_out=True)] = affine(12, 50) / 1.1
    again = {point: seconds * 1.02 for point, seconds in cells.items()}
    error = held_out_error(cells, again)
    assert error.decode.noise == pytest.approx(0.02) and error.prefill.noise is None
    assert error.prefill.num_points == 0 and error.prefill.mean is None
    assert error.decode.mean == pytest.approx(0.05, rel=1e-6)
    assert error.all.max == pytest.approx(0.1, rel=1e-6)


def test_tables_never_fall_along_context_but_may_along_rows() -> None:
    """Noise that would make a longer context cheaper is pooled; a batch of 4 that is faster than one of 2 is real."""
    cells = {make_point("decode", 2, c): s for c, s in ((1, 3.0), (9, 4.0), (90, 2.0), (900, 5.0))}
    cells |= {make_point("decode", 4, c): 1.0 for c in (1, 900)}
    table = make_table(cells, "decode")
    assert table.rows[0].seconds == (3.0, 3.0, 3.0, 5.0)
    assert table.rows[1].seconds == (1.0, 1.0)


def test_tables_leave_out_rows_of_one_context() -> None:
    """Nothing is known of their slope; with fewer than two rows left there is no table."""
    cells = {make_point("decode", row, c): 1.0 for row in (1, 2) for c in (1, 9)} | {make_point("decode", 3, 1): 1.0}
    table = make_table(cells, "decode")
    assert [row.row for row in table.rows] == [1, 2]
    validity = make_validity(table, table)
    assert (validity.max_batch_size, validity.min_decode_context, validity.max_decode_context) == (2, 1, 9)
    with pytest.raises(CalibrationError, match="at least 2 rows of 2 contexts"):
        make_table({make_point("decode", 1, 1): 1.0}, "decode")
