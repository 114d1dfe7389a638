"""The estimate before, and the refinement after the grid."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from calibrate.clock import Timing
from calibrate.contention import Contention
from calibrate.estimate import estimate_s, words, work
from calibrate.grid import Limits, Point, make_grid
from calibrate.measure import Instruments, Measurement, Measurer
from calibrate.plan import Plan, choose_anchor
from calibrate.refine import refine
from simserve.model_spec import load_model_spec
from simserve.step_time.profile_schema import ModelDimensions
from tests.profile_builders import make_point
from tests.test_calibrate_measure import run

DIMENSIONS = ModelDimensions.of(load_model_spec("25m"))
LAUNCH_S, TOKEN_S = 5e-3, 4e-4


class Device:
    """Steps that take exactly a launch and their work; counts the seconds that all of them took."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._point = make_point("prefill", 1, 0)

    def prepare(self, point: Point) -> None:
        self._point = point

    def step(self) -> None:
        self.total_s += self.step_s()

    def step_s(self) -> float:
        return LAUNCH_S + TOKEN_S * work(self._point, DIMENSIONS)

    def time(self, step: Callable[[], object]) -> Timing:
        step()
        return Timing(self.step_s(), self.step_s())


def test_the_estimate_is_what_the_visits_take() -> None:
    """On a device that is as the estimate supposes: every sample, warm-up and anchor visit is counted."""
    points = tuple(make_grid("standard", False, Limits(64, 512, 128)))
    plan = Plan(points, 3, 100.0, 0, choose_anchor(points))
    prober, device = Device(), Device()
    guess = estimate_s(plan, prober, prober.time, DIMENSIONS)
    run(Measurer(plan, device, Instruments(device.time, "process_cpu", Contention(lambda: None)), Measurement()))
    assert guess == pytest.approx(device.total_s, rel=0.05)


def test_work_counts_tokens_and_pairs() -> None:
    """A token of the 25m model is 25.0 million multiplications in its 8 layers, less the output; a pair is 2 · 512 a
    layer. So 2,048 cached tokens cost a decode 0.33 of a token more; a packed row is the sum of its sequences."""
    per_layer = 512 * 512 * 2 + 2 * 512 * 128 + 3 * 512 * 1408
    one = work(make_point("decode", 1, 2048), DIMENSIONS)
    assert one == pytest.approx(1 + 2 * 512 * 2048.5 / per_layer)
    assert work(make_point("decode", 7, 2048), DIMENSIONS) == pytest.approx(7 * one)


@pytest.mark.parametrize(("seconds", "said"), [(0.1, "1 s"), (42, "42 s"), (130, "2 min"), (7200, "2.0 h")])
def test_durations_are_rounded(seconds: float, said: str) -> None:
    """As one tells somebody who waits."""
    assert words(seconds) == said


def curve(row: int, context: int) -> float:
    """Linear but for a jump of a half between rows 8 and 16, as a kernel with tiles has."""
    return 1e-3 * row + 1e-6 * row * context + (8e-3 if row > 8 else 0)


def test_refinement_goes_where_the_neighbours_are_wrong() -> None:
    """Beside the rows at the jump, between them and their neighbour on the wider side; all contexts of the row; the
    note says what, why and within which budget. Where every row is well predicted, nothing is added."""
    rows, contexts = (1, 2, 4, 8, 16, 64), (1, 100)
    cells = {make_point(ph, row, c): curve(row, c) for ph in ("prefill", "decode") for row in rows for c in contexts}
    points, note = refine(cells, "standard", 3)
    assert {(p.phase, p.row) for p in points} >= {("decode", 32), ("prefill", 32)}
    assert all(p.row not in rows and not p.held_out for p in points)
    assert {p.num_context_tokens for p in points} == set(contexts)
    assert note is not None and "neighbours predict a row badly" in note and "15 s" in note
    assert refine(cells, "quick", 3) == ([], None)
    smooth = {p: 1e-3 + 1e-4 * p.row + 1e-7 * p.row * p.num_context_tokens for p in cells}
    assert refine(smooth, "full", 3) == ([], None)


def test_refinement_keeps_its_budget() -> None:
    """Rows whose steps would take longer than the budget are left as they are."""
    rows = (1, 2, 4, 8, 16, 64)
    cells = {
        make_point(ph, row, c): 1e3 * curve(row, c) for ph in ("prefill", "decode") for row in rows for c in (1, 9)
    }
    assert refine(cells, "standard", 3) == ([], None)
