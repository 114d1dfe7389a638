"""Decodes that follow steps of their own decision: how they are measured, fitted, kept and simulated."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from calibrate.chains import chain_points
from calibrate.engines.engine import EngineSteps, StepShape
from calibrate.fit_mixed import batch_of
from calibrate.grid import Axes, Point
from calibrate.measure import Measurement
from calibrate.plan import Plan
from calibrate.show import show
from simserve.errors import ProfileError
from simserve.report.calibration_content import calibration_content
from simserve.request import Batch, Chunk
from simserve.step_time.draws import ProfileDraws
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import content_digest, parse_profile
from simserve.step_time.repeated import Ratios, repeater
from simserve.step_time.stretch import Ramp, Stretch
from tests.builders import run_engine
from tests.profile_builders import affine, make_profile_text
from tests.strategies import Case, cases
from tests.test_calibrate_measure import FakeDevice, run

CHAIN = Point("decode", 4, 1, 64, num_repeats=9)
ALONE = Point("decode", 2, 1, 64)


def faster(batch_size: int) -> float:
    """From 0.9 at batch 1 to 0.98 at batch 16: no batch has the ratio of another."""
    return 0.9 + 0.02 * math.log2(batch_size)


PROFILE, TEXT = make_profile_text(chained=faster)
PLAIN, PLAIN_TEXT = make_profile_text()
STEP_TIME = ProfileStepTime(PROFILE)


# --- measuring -------------------------------------------------------------------------------------------------------


def test_the_later_half_of_a_chain_is_kept_and_each_step_says_where_it_stood() -> None:
    """A chain of ten steps that ends over 64 tokens: the last five are kept, over 60 to 64, behind five to nine."""
    device = FakeDevice()
    measurement = run(device.measurer(Plan((CHAIN,), 2, 10.0, seed=0, as_served=True)))
    kept = [(s.num_context_tokens, s.num_repeats) for s in measurement.samples]
    assert kept == 2 * [(60, 5), (61, 6), (62, 7), (63, 8), (64, 9)]
    assert len(device.steps) == 1 + 2 * 10  # one beforehand, to know how long it takes


@pytest.mark.parametrize(
    ("step_s", "num_repeats", "visits"), [(0.01, 9, 2), (0.04, 9, 2), (0.11, 5, 1), (0.19, 3, 1), (0.5, 2, 1)]
)
def test_a_chain_of_long_steps_is_shorter_and_visited_once(step_s: float, num_repeats: int, visits: int) -> None:
    """At most 0.6 s behind one another, and never fewer than two before the last; one visit where it takes longer than
    a point may, half a second here."""
    device = FakeDevice(step_s=step_s)
    measurement = run(device.measurer(Plan((CHAIN,), 2, 0.5, seed=0, as_served=True)))
    assert max(s.num_repeats for s in measurement.samples) == num_repeats
    assert len(measurement.of(CHAIN)) == visits
    assert measurement.samples[-1].num_context_tokens == 64


def test_a_chain_is_no_sample_of_its_point_alone() -> None:
    """A decode of the same batch over the same context gets its own samples, in any order of the two; what a run left
    is not measured again."""
    points = CHAIN, CHAIN._replace(num_repeats=0), ALONE
    plan = Plan(points, 3, 10.0, seed=0, as_served=True)
    measurement = run(FakeDevice().measurer(plan))
    assert [len(measurement.of(point)) for point in points] == [2, 3, 3]
    again = Measurement(list(measurement.samples))
    device = FakeDevice()
    assert run(device.measurer(plan, again)).samples == measurement.samples and not device.steps


def test_disturbed_chains_are_visited_again() -> None:
    """Neighbours during the first visit: all its steps are marked, and visits follow until two were clean."""
    device = FakeDevice(busy=lambda number: float(number == 0))
    measurement = run(device.measurer(Plan((CHAIN,), 2, 10.0, seed=0, as_served=True)))
    visits = [{s.dirty for s in measurement.samples[i : i + 5]} for i in range(0, len(measurement.samples), 5)]
    assert visits[0] == {True} and visits[-2:] == [{False}] * 2 and {len(visit) for visit in visits} == {1}


class Decoder:
    """An engine that goes on by itself, as engines do."""

    def prepare(self, shape: StepShape, num_steps: int = 1) -> None:
        self.shape, self.left = shape, num_steps

    def step(self) -> object:
        self.done, self.left = self.shape, self.left - 1
        self.shape = tuple((1, cached + new) for new, cached in self.shape)
        return None

    def computed(self) -> StepShape:
        return self.done


def test_an_engine_is_brought_to_the_first_step_of_a_chain_and_held_to_each() -> None:
    """Ten steps from context 55 on, each of the shape that follows; the last is the point's."""
    engine = Decoder()
    steps = EngineSteps(engine)  # type: ignore[arg-type]  # of an engine, what a step needs
    steps.prepare(CHAIN)
    seen = []
    for _ in range(10):
        steps.timer(steps.step)
        seen.append(engine.computed()[0][1])
    assert seen == list(range(55, 65)) and engine.left == 0


@given(st.lists(st.integers(1, 64), min_size=1, max_size=9, unique=True), st.integers(2, 500), st.integers(0, 9))
def test_every_batch_size_has_a_chain_and_those_held_out_share_no_step(
    sizes: list[int], longest: int, seed: int
) -> None:
    """Wherever contexts are long enough; none begins before its first token or ends beyond the longest context."""
    contexts = tuple(sorted({1, max(1, longest // 2), longest}))
    points = chain_points(Axes(tuple(sorted(sizes)), contexts), seed)
    middle = contexts[len(contexts) // 2]
    assert [p.batch_size for p in points if not p.held_out] == (sorted(sizes) if middle > 9 else [])
    fitted = {p.batch_size: p for p in points if not p.held_out}
    for point in points:
        assert point.num_context_tokens - point.num_repeats >= 1 and point.num_context_tokens <= longest
        other = fitted[point.batch_size]
        assert not point.held_out or abs(point.num_context_tokens - other.num_context_tokens) > point.num_repeats


def test_where_no_workload_is_known_chains_are_few_and_short() -> None:
    """Every second batch size, three steps before the last: a quarter of the steps that the quick grid has anyway."""
    points = chain_points(Axes((1, 2, 4, 8, 16, 64), (1, 1024)), 0, sparse=True)
    assert [p.batch_size for p in points if not p.held_out] == [1, 4, 16]
    assert {p.num_repeats for p in points} == {3} and len(points) <= 4


# --- fitting and keeping ---------------------------------------------------------------------------------------------


def test_the_ratios_of_the_chains_are_found_and_the_tables_untouched() -> None:
    """The truth of each batch size, from chains at one context; tables, noise and other errors are those of the same
    samples without chains; and chains held out, at other contexts, are predicted."""
    assert PROFILE.repeated is not None
    truth = tuple(map(faster, PROFILE.repeated.batch_sizes))
    assert PROFILE.repeated.batch_sizes == (1, 2, 4, 8, 16)
    assert PROFILE.repeated.ratios == pytest.approx(truth)
    plain = PLAIN
    assert plain.repeated is None and plain.held_out.repeated is not None and plain.held_out.repeated.num_points == 0
    for name in ("samples", "noise", "batch_curve", "validity"):
        assert getattr(PROFILE, name) == getattr(plain, name), name
    for ours, theirs in ((PROFILE.prefill, plain.prefill), (PROFILE.decode, plain.decode)):
        assert [row.seconds for row in ours.rows] == [row.seconds for row in theirs.rows]
    assert PROFILE.held_out.all == plain.held_out.all
    error = PROFILE.held_out.repeated
    assert error is not None and error.num_points >= 9 and error.max == pytest.approx(0, abs=1e-9)


def test_a_profile_without_chains_reads_and_predicts_as_before() -> None:
    """A file that was written before there were chains: neither key is there, and step k is the table's."""
    content = json.loads(PLAIN_TEXT)
    del content["repeated"], content["held_out"]["repeated"]
    content["digest"] = content_digest(content)
    old = parse_profile(content, "old.json")
    batch = Batch(num_decodes=3, decode_context_tokens=90)
    assert old.repeated is None
    assert ProfileStepTime(old).ramp(batch, 5) == ProfileStepTime(PLAIN).ramp(batch, 5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_sizes": [2, 1, 4, 8, 16]}, "batch sizes must increase"),
        ({"ratios": [0.9]}, "5 batch sizes but 1 ratios"),
        ({"ratios": [0.9, 0.9, 0.9, 0.9, 0]}, "greater than 0"),
    ],
)
def test_ratios_that_are_none_are_refused(change: dict[str, object], words: str) -> None:
    """One sentence that says where."""
    content = json.loads(TEXT)
    content["repeated"] |= change
    content["digest"] = content_digest(content)
    with pytest.raises(ProfileError, match=rf"p\.json: repeated.*{words}"):
        parse_profile(content, "p.json")


def test_a_draw_moves_the_ratios_as_the_samples_of_their_chains_scatter() -> None:
    """Samples without noise leave them where they are, but for what a few tokens of context are worth; with as much as
    5 % of noise in every sample, ratios of draws scatter, and their middle stays."""
    rng = np.random.default_rng(0)
    assert PROFILE.repeated is not None
    quiet = ProfileDraws(PROFILE).draw(rng)
    assert quiet.repeated is not None and quiet.decode != PROFILE.decode
    assert quiet.repeated.ratios == pytest.approx(PROFILE.repeated.ratios, rel=1e-3)
    noisy = [
        sample.model_copy(update={"cpu_s": sample.cpu_s * math.exp(0.05 * rng.standard_normal())})
        for sample in PROFILE.repeated.samples
        if sample.cpu_s
    ]
    repeated = PROFILE.repeated.model_copy(update={"samples": tuple(noisy)})
    draws = ProfileDraws(PROFILE.model_copy(update={"repeated": repeated}))
    found = [drawn.ratios for drawn in (draws.draw(rng).repeated for _ in range(100)) if drawn is not None]
    relative = np.array(found) / PROFILE.repeated.ratios
    assert (np.std(relative, axis=0) > 0.005).all() and np.median(relative, axis=0) == pytest.approx(1, abs=0.04)


# --- simulating ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 1024))
def test_the_first_decode_of_a_decision_is_the_table_s_and_the_others_follow_their_kind(
    size: int, context: int
) -> None:
    """Step 0 takes T(B, C), step k takes ratio(B) times T(B, C + k); between batch sizes a ratio lies between theirs,
    and beyond them it is the last."""
    batch = Batch(num_decodes=size, decode_context_tokens=size * context)
    plain = ProfileStepTime(PROFILE.model_copy(update={"repeated": None}))
    assert STEP_TIME.ramp(batch, 0).first_s == plain.ramp(batch, 0).first_s
    assert STEP_TIME.ramp(batch, 0).num_steps == 1
    for step in (1, 7):
        ratio = STEP_TIME.ramp(batch, step).first_s / plain.ramp(batch, step).first_s
        assert ratio == pytest.approx(faster(min(size, 16)), abs=0.01)


def test_steps_with_prefills_are_the_composition_whatever_came_before() -> None:
    """Chains are decodes; a chunk that goes on is not."""
    batch = Batch((Chunk(16, 0),), 3, 90)
    plain = ProfileStepTime(PROFILE.model_copy(update={"repeated": None}))
    assert STEP_TIME.ramp(batch, 4) == plain.ramp(batch, 4)
    assert repeater(None)(Ramp(1.0, 0.1, 5), 3, 4) == Ramp(1.0, 0.1, 5)
    assert repeater(Ratios((2,), (0.5,)))(Ramp(1.0, 0.1, 5), 7, 4) == Ramp(0.5, 0.05, 5)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 20), st.integers(1, 900), st.integers(1, 300))
def test_a_stretch_of_decodes_is_the_sum_of_its_steps(size: int, context: int, num_steps: int) -> None:
    """INV-7: closed form = step by step."""
    batch = Batch(num_decodes=size, decode_context_tokens=size * context)
    total = math.fsum(STEP_TIME.ramp(batch, k).first_s for k in range(num_steps))
    assert Stretch(STEP_TIME, batch).span_s(num_steps) == pytest.approx(total, rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(cases())
def test_fast_forward_changes_nothing(case: Case) -> None:
    """INV-7: skipping and stepping record the same under every policy, although a step's time depends on how many of
    its decision came before."""
    if case.settings.allocator == "none" or case.settings.speculation is not None:
        return  # no decodes that the tables know
    on, off = (run_engine(case.table, case.settings, STEP_TIME, skips, clients=case.clients) for skips in (True, False))
    assert on.requests.end_ns.tolist() == off.requests.end_ns.tolist()
    assert on.requests.first_token_ns.tolist() == off.requests.first_token_ns.tolist()
    assert np.array_equal(on.itl_counts, off.itl_counts)
    assert all(
        np.array_equal(a, b) for a, b in zip(on.spans.columns().values(), off.spans.columns().values(), strict=True)
    )


def test_a_point_of_a_chain_is_the_step_of_its_decision() -> None:
    """The decision began nine steps earlier, over 55 tokens in each row; step 9 of it is over 64."""
    assert (batch_of(CHAIN).num_decodes, batch_of(CHAIN).decode_context_tokens) == (4, 4 * 55)
    plain = ProfileStepTime(PROFILE.model_copy(update={"repeated": None}))
    assert plain.ramp(batch_of(CHAIN), 9).first_s == pytest.approx(affine(4, 64))


# --- telling ---------------------------------------------------------------------------------------------------------


def test_a_terminal_and_a_page_tell_the_ratios() -> None:
    """Each batch size with its own, to three digits; the error on chains held out beside the others; and where there
    are none, not a word."""
    printed, silent = io.StringIO(), io.StringIO()
    show(PROFILE, Console(file=printed, width=160))
    show(PLAIN, Console(file=silent, width=160))
    page = str(calibration_content(PROFILE))
    for size in (1, 2, 4, 8, 16):
        assert f"{faster(size):.3f}" in printed.getvalue() and f"{faster(size):.3f} at {size}" in page
    assert "Held-out error, repeated: mean 0.0%" in printed.getvalue()
    assert "behind" not in silent.getvalue() and "its own kind" not in str(calibration_content(PLAIN))
