"""Laws of ``Stretch``: whatever the ramps, closed forms say what a step-by-step sum would."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.request import Batch
from simserve.step_time.source import StepTimeSource
from simserve.step_time.stretch import NS_PER_S, UNBOUNDED, Ramp, Stretch

NOTHING = StepTimeSource("ramps", "roofline", "test", False, None, "made up")


@dataclass
class ListedRamps:
    """Ramps one after another, the last for ever at its last duration."""

    ramps: list[Ramp]
    source: StepTimeSource = NOTHING

    def ramp(self, batch: Batch, step: int) -> Ramp:
        start = 0
        for ramp in self.ramps:
            if step < start + ramp.num_steps:
                assert step == start, "a stretch asks only where a ramp begins"
                return ramp
            start += ramp.num_steps
        last = self.ramps[-1]
        return Ramp(last.at(last.num_steps - 1), 0.0, UNBOUNDED)

    def duration(self, step: int) -> float:
        for ramp in self.ramps:
            if step < ramp.num_steps:
                return ramp.at(step)
            step -= ramp.num_steps
        return self.ramps[-1].at(self.ramps[-1].num_steps - 1)


@st.composite
def ramp_lists(draw):
    """One to five ramps whose durations stay between a microsecond and a second."""
    ramps = []
    for _ in range(draw(st.integers(1, 5))):
        steps = draw(st.integers(1, 40))
        first, last = draw(st.floats(1e-6, 1.0)), draw(st.floats(1e-6, 1.0))
        ramps.append(Ramp(first, (last - first) / max(1, steps - 1), steps))
    return ListedRamps(ramps)


@given(ramp_lists(), st.integers(0, 250))
def test_a_span_is_the_sum_of_its_steps(model, num_steps):
    """``span_s(n)`` equals the n durations added one by one."""
    expected = math.fsum(model.duration(step) for step in range(num_steps))
    assert Stretch(model, Batch()).span_s(num_steps) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@given(ramp_lists(), st.lists(st.integers(1, 250), min_size=1, max_size=8))
def test_a_span_does_not_depend_on_what_was_asked_before(model, questions):
    """Bit for bit: a fresh stretch and one that was asked other spans first say the same (INV-7 rests on it)."""
    used = Stretch(model, Batch())
    answers = [used.end_ns(num_steps) for num_steps in questions]
    assert answers == [Stretch(model, Batch()).end_ns(num_steps) for num_steps in questions]


@given(ramp_lists())
def test_every_step_takes_time(model):
    """The clock moves at every step end, by at least a nanosecond."""
    stretch = Stretch(model, Batch())
    ends = [stretch.end_ns(num_steps) for num_steps in range(1, 120)]
    assert ends[0] > 0
    assert all(later > earlier for earlier, later in pairwise(ends))


@given(ramp_lists(), st.integers(0, 200 * NS_PER_S))
def test_steps_until_is_the_first_step_end_at_or_after(model, elapsed_ns):
    """``steps_until(t)`` is the smallest n ≥ 1 with ``end_ns(n) >= t``."""
    stretch = Stretch(model, Batch())
    num_steps = stretch.steps_until(elapsed_ns)
    assert num_steps >= 1
    assert stretch.end_ns(num_steps) >= elapsed_ns
    assert num_steps == 1 or stretch.end_ns(num_steps - 1) < elapsed_ns


@given(ramp_lists(), st.integers(1, 120), st.integers(-1, 1))
def test_steps_until_is_right_at_step_ends_themselves(model, num_steps, offset_ns):
    """A time one nanosecond after a step end belongs to the next step; at it or just before, to that step."""
    stretch = Stretch(model, Batch())
    elapsed_ns = stretch.end_ns(num_steps) + offset_ns
    found = stretch.steps_until(elapsed_ns)
    assert stretch.end_ns(found) >= elapsed_ns and (found == 1 or stretch.end_ns(found - 1) < elapsed_ns)
    assert found == num_steps + (offset_ns > 0) or stretch.end_ns(found) - elapsed_ns <= 1


@given(ramp_lists(), st.integers(0, 100), st.integers(0, 100))
def test_pieces_cover_the_steps_once_in_order(model, begin, length):
    """The pieces of [begin, end) list each step's duration exactly as its ramp gives it."""
    found = [
        r.at(i) for r, first, stop in Stretch(model, Batch()).pieces(begin, begin + length) for i in range(first, stop)
    ]
    assert found == [model.duration(step) for step in range(begin, begin + length)]


@given(ramp_lists(), st.floats(0, 10), st.integers(1, 60))
def test_a_lead_delays_every_step_alike(model, lead_s, num_steps):
    """Time taken before the first step (a swap) moves all step ends by as much."""
    late, prompt = Stretch(model, Batch(), lead_s), Stretch(model, Batch())
    assert late.span_s(num_steps) == pytest.approx(lead_s + prompt.span_s(num_steps), rel=1e-12)


@settings(deadline=1000)
@given(st.floats(1e-6, 1e-2), st.floats(0, 1e-7), st.integers(1, 10**7))
def test_ten_million_steps_cost_no_more_than_one(first_s, slope_s, num_steps):
    """A single ramp answers any span and its inverse at once, and the inverse is exact."""
    stretch = Stretch(ListedRamps([Ramp(first_s, slope_s, UNBOUNDED)]), Batch())
    end_ns = stretch.end_ns(num_steps)
    found = stretch.steps_until(end_ns)
    assert stretch.end_ns(found) >= end_ns and (found == 1 or stretch.end_ns(found - 1) < end_ns)


def test_a_step_takes_at_least_a_nanosecond():
    """Durations below the clock's tick still move it: no two steps of a stretch end at the same time."""
    stretch = Stretch(ListedRamps([Ramp(1e-12, 0.0, 5)]), Batch())
    assert [stretch.end_ns(n) for n in range(1, 9)] == list(range(1, 9))
