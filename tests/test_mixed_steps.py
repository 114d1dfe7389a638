"""Mixed steps: the correction that measurements support, and that it keeps ramps exact."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from calibrate.fit_mixed import batch_of, fit_composition, fit_mixed
from calibrate.grid import Point
from calibrate.held_out_error import held_out_error
from simserve.request import Batch, Chunk
from simserve.step_time.composition import ComposedSteps
from simserve.step_time.mixed import corrector
from simserve.step_time.profile_schema import MixedCorrection
from simserve.step_time.stretch import Ramp, Stretch
from tests.profile_builders import affine, make_point, make_profile
from tests.profile_builders import make_table as table_of

CELLS = {row: {c: affine(row, c) for c in (1, 100, 1000)} for row in (1, 4, 16, 64, 256)}
COMPOSED = ComposedSteps(table_of(CELLS), table_of(CELLS))
MIXED = [Point("mixed", 1, q, c, False, b, d) for q, c, b, d in product((8, 64), (0, 500), (2, 16), (100, 900))]


def composed_s(point: Point) -> float:
    return COMPOSED.ramp(batch_of(point), 0).first_s


@pytest.mark.parametrize("form", ["ratio", "added"])
def test_the_form_that_the_measurements_follow_is_found(form: Literal["ratio", "added"]) -> None:
    """Steps 1.2 times their composition give ratios of 1.2; steps 2 ms longer give 2 ms, in every cell."""
    truth = {p: composed_s(p) * 1.2 if form == "ratio" else composed_s(p) + 2e-3 for p in MIXED}
    fitted = fit_mixed(truth, COMPOSED)
    assert fitted is not None and fitted.form == form and fitted.num_points == len(MIXED)
    assert (fitted.num_new_tokens, fitted.num_decodes) == ((8, 64), (2, 16))
    expected = 1.2 if form == "ratio" else 2e-3
    assert all(value == pytest.approx(expected) for row in fitted.values for value in row)


def test_nothing_measured_corrects_nothing() -> None:
    """Without mixed points there is no correction; held-out ones are never fitted; a missing cell stays as composed."""
    held = {p._replace(held_out=True): 1.0 for p in MIXED}
    assert fit_mixed({}, COMPOSED) is None and fit_mixed(held, COMPOSED) is None
    some = {p: composed_s(p) * 1.5 for p in MIXED if (p.num_new_tokens, p.num_decodes) != (8, 2)}
    fitted = fit_mixed(some, COMPOSED)
    assert fitted is not None and fitted.form == "ratio"
    assert fitted.values[0][0] == 1.0 and fitted.values[1][1] == pytest.approx(1.5)


def test_the_held_out_error_of_mixed_steps_is_that_of_the_corrected_prediction() -> None:
    """Every mixed step 1.3 times its composition: the fit predicts one it has not seen, and another 10 % off."""
    medians = {
        make_point(ph, row, c): affine(row, c) for ph in ("prefill", "decode") for row in CELLS for c in CELLS[row]
    }
    medians |= {p: composed_s(p) * 1.3 for p in MIXED}
    unseen = Point("mixed", 1, 30, 200, True, 5, 400)
    medians[unseen] = composed_s(unseen) * 1.3
    other = Point("mixed", 1, 20, 100, True, 9, 300)
    medians[other] = composed_s(other) * 1.3 / 1.1
    error = held_out_error(medians).mixed
    assert error is not None and error.num_points == 2
    assert error.mean == pytest.approx(0.05) and error.max == pytest.approx(0.1)


@pytest.mark.parametrize("one_mask", [False, True])
def test_whether_a_step_attends_as_one_row_is_read_from_the_mixed_steps(one_mask: bool) -> None:
    """Steps that cost what either rule says, and a tenth more: that rule is found, and the tenth as its correction."""
    tables = table_of(CELLS), table_of(CELLS)
    truth = ComposedSteps(*tables, one_mask=one_mask)
    medians = {point: 1.1 * truth.ramp(batch_of(point), 0).first_s for point in MIXED}
    fitted = fit_composition(medians, *tables)
    assert fitted.one_mask == one_mask and fitted.mixed is not None and fitted.mixed.form == "ratio"
    assert all(value == pytest.approx(1.1) for row in fitted.mixed.values for value in row)
    assert fit_composition({}, *tables) == (False, None)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 300)), min_size=1, max_size=4),
    st.integers(0, 9),
    st.integers(1, 300),
)
def test_under_one_mask_a_row_attends_to_every_cache(chunks: list[tuple[int, int]], decodes: int, mean: int) -> None:
    """However tokens and caches are shared out among sequences, a step of N tokens over K cached ones is one prefill
    of N tokens over K: here 1 ms and 0.1 ms a token and 0.1 µs a (token, cached token) pair, by the definition."""
    steps = ComposedSteps(table_of(CELLS), table_of(CELLS), one_mask=True)
    new = sum(tokens for tokens, _ in chunks) + decodes
    cached = sum(context for _, context in chunks) + decodes * mean
    got = steps.ramp(Batch(tuple(Chunk(*each) for each in chunks), decodes, decodes * mean), 0).first_s
    if new <= 256 and cached >= 1:  # the grid's own rows and contexts; beyond it the slope goes on
        assert got == pytest.approx(affine(new, cached), rel=1e-9)


RATIO = MixedCorrection(
    form="ratio", num_new_tokens=(8, 128), num_decodes=(2, 32), values=((1.0, 2.0), (3.0, 4.0)), num_points=4
)


def test_between_cells_it_is_bilinear_in_logarithms_and_outside_the_edge() -> None:
    """The geometric middle gets the mean of four cells; far outside is as at the nearest measured corner."""
    correct = corrector(RATIO)
    assert correct(Ramp(1.0, 0.5, 3), 32, 8) == Ramp(2.5, 1.25, 3)
    assert correct(Ramp(1.0, 0.0, 3), 1, 1).first_s == 1.0
    assert correct(Ramp(1.0, 0.0, 3), 10**6, 10**6).first_s == 4.0
    added = corrector(RATIO.model_copy(update={"form": "added"}))
    assert added(Ramp(1.0, 0.5, 3), 32, 8) == Ramp(3.5, 0.5, 3)


Step = tuple[int, int, int, int]
STEPS = st.tuples(st.integers(1, 300), st.integers(0, 900), st.integers(1, 40), st.integers(1, 900))


@given(STEPS, st.integers(1, 60), st.booleans())
def test_corrected_stretches_are_sums_of_their_steps(step: Step, n: int, one_mask: bool) -> None:
    """INV-7: the correction does not depend on contexts, so ramps stay exact; under one mask too."""
    steps = ComposedSteps(table_of(CELLS), table_of(CELLS), RATIO, one_mask=one_mask)
    new, context, decodes, mean = step

    class Model:
        source: Any = None
        ramp = staticmethod(steps.ramp)

    def at(k: int) -> Batch:
        return Batch((Chunk(new, context + k * new),), decodes, decodes * (mean + k))

    total = math.fsum(steps.ramp(at(k), 0).first_s for k in range(n))
    assert Stretch(Model(), at(0)).span_s(n) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_new_tokens": (128, 8)},
        {"num_decodes": (2,)},
        {"values": ((1.0, 2.0),)},
        {"values": ((1.0, 0.0), (3.0, 4.0))},
        {"values": ((1.0, -1.0), (3.0, 4.0))},
    ],
)
def test_a_correction_that_is_not_whole_is_refused(wrong: dict[str, Any]) -> None:
    """Axes increase, every cell is there, and no ratio makes a step vanish."""
    with pytest.raises(ValidationError):
        MixedCorrection(**(RATIO.model_dump() | wrong))


def test_the_note_says_what_mixed_steps_rest_on() -> None:
    """A profile without measured mixed steps says that they are compositions; one with says how many and where."""
    from simserve.step_time.profile import ProfileStepTime

    bare = make_profile()
    assert ProfileStepTime(bare).source.note.endswith("packed prefills and mixed steps are compositions")
    measured = bare.model_copy(update={"mixed": RATIO})
    assert "corrected by 4 measured ones (8–128 tokens beside 2–32 decodes)" in ProfileStepTime(measured).source.note
    assert "attend as one row" not in ProfileStepTime(measured).source.note
    assert "attend as one row" in ProfileStepTime(measured.model_copy(update={"one_mask": True})).source.note
