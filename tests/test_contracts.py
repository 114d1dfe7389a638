"""What every policy, every cache and every step-time model must do, in every combination.

A new policy or allocator joins by its name in ``strategies``, a step-time model by standing in ``MODELS`` below;
shipped profiles join by themselves.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simserve.model_spec import load_model_spec
from simserve.records import FINISHED
from simserve.request import Batch, Chunk
from simserve.step_time.hardware import load_hardware
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import load_profile, shipped_profiles
from simserve.step_time.roofline import RooflineStepTime
from simserve.step_time.stretch import UNBOUNDED, Stretch
from tests import step_times
from tests.builders import build_scheduler, run_engine, skewed64
from tests.reference_types import Settings, Speculation
from tests.step_times import ConstantStepTime
from tests.strategies import ALLOCATORS, COMBINATIONS, MS, QUEUE_ORDERS, Case, cases, may_speculate, table_of
from tests.watched import WatchedScheduler

MODELS = {type(model).__name__: model for model in step_times.MODELS}
MODELS["RooflineStepTime"] = RooflineStepTime(load_model_spec("qwen2.5-0.5b"), load_hardware("h100-sxm"))
MODELS |= {name: ProfileStepTime(load_profile(name)) for name in shipped_profiles()}

every_allocator = pytest.mark.parametrize("allocator", ALLOCATORS)
every_combination = pytest.mark.parametrize(("policy", "allocator"), COMBINATIONS)
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
run_briefly = settings(max_examples=40, deadline=None)


# Those that speculate too, with three drafts of which each is right four times in five.
DRAFTS = Speculation((0.8, 0.8, 0.8))
MODES = tuple((p, a, drafts) for p, a in COMBINATIONS for drafts in (None, DRAFTS) if not drafts or may_speculate(p, a))
every_mode = pytest.mark.parametrize(
    ("policy", "allocator", "drafts"), MODES, ids=["-".join([p, a, "drafts"][: 2 + bool(d)]) for p, a, d in MODES]
)
# Policies whose queue's head blocks the rest: transformers' lets a short prompt overtake one that finds no block.
IN_ORDER = tuple(
    (policy, allocator, drafts, order)
    for (policy, allocator, drafts), order in itertools.product(MODES, QUEUE_ORDERS)
    if policy != "transformers"
)


def small_settings(policy: str, allocator: str, **changes) -> Settings:
    """Eight slots over a cache that binds: the 64 requests need about twice as much to run undisturbed."""
    s = Settings(policy, allocator, 8, 512, 320, num_blocks=30, block_size=16, reserve="oracle")
    return replace(s, **changes)


@every_combination
@every_model
def test_any_combination_serves_everyone_and_fast_forward_is_exact(policy, allocator, model):
    """The 64 skewed requests finish; step by step and fast-forward give the same times, steps and tokens."""
    s = small_settings(policy, allocator)
    fast, slow = (run_engine(skewed64(), s, model, fast_forward=on) for on in (True, False))
    assert (fast.requests.status == FINISHED).all()
    for name in ("first_scheduled_ns", "first_token_ns", "last_token_ns", "end_ns"):
        assert (getattr(fast.requests, name) == getattr(slow.requests, name)).all()
    assert (fast.itl_counts == slow.itl_counts).all()
    assert (fast.num_steps, fast.num_computed_tokens) == (slow.num_steps, slow.num_computed_tokens)


@every_mode
def test_a_decision_is_one_object_while_it_stands(policy, allocator, drafts):
    """``steady_steps`` is in [1, max_steps]; for so many steps ``schedule`` answers with the same object, unless a
    sequence finishes in between."""

    @run_briefly
    @given(all_at_once(policy=policy, allocator=allocator, speculation=drafts))
    def holds(case):
        watched = WatchedScheduler(build_scheduler(case.settings))
        run_engine(case.table, case.settings, case.step_time, fast_forward=False, scheduler=watched)
        for i, (batch, steady) in enumerate(zip(watched.batches, watched.steady, strict=True)):
            assert 1 <= steady <= 100
            for j in range(i + 1, i + steady):
                if j - 1 in watched.finished_after:
                    break
                assert watched.batches[j] is batch, f"decision {i} was to stand {steady} steps, not {j - i}"

    holds()


@st.composite
def all_at_once(draw: st.DrawFn, **fixed: object) -> Case:
    case = draw(cases(**fixed))
    return replace(case, table=replace(case.table, arrival_ns=np.zeros(len(case.table), np.int64)))


@pytest.mark.parametrize(("policy", "allocator", "drafts", "order"), IN_ORDER)
def test_nobody_is_overtaken(policy, allocator, drafts, order):
    """When all are there, first schedules follow the queue order: the head blocks the rest."""

    @run_briefly
    @given(all_at_once(policy=policy, allocator=allocator, speculation=drafts, queue_order=order))
    def holds(case):
        records = run_engine(case.table, case.settings, case.step_time)
        keys = {"fcfs": 0 * case.table.priority, "priority": case.table.priority}
        key = keys.get(order, case.table.num_output_tokens)
        in_order = np.lexsort((np.arange(len(key)), key))
        served = in_order[records.requests.status[in_order] == FINISHED]
        assert (np.diff(records.requests.first_scheduled_ns[served]) >= 0).all()

    holds()


@every_mode
def test_the_true_length_is_read_by_nobody_but_the_finish(policy, allocator, drafts):
    """Two workloads that differ only in true output lengths get the same decisions until the first of them ends."""

    @run_briefly
    @given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.data())
    def holds(prompts, data):
        shortest, n = data.draw(st.integers(1, 10)), len(prompts)
        lengths = st.lists(st.integers(shortest, 40), min_size=n, max_size=n)
        s = small_settings(policy, allocator, num_blocks=data.draw(st.integers(20, 40)), block_size=4, max_num_seqs=3)
        s = replace(s, max_num_batched_tokens=80, max_model_len=75, reserve="max_tokens", speculation=drafts)
        first_end, shapes = [], []
        for outputs in (data.draw(lengths), data.draw(lengths)):
            watched = WatchedScheduler(build_scheduler(s))
            table = table_of([0] * n, prompts, outputs, [40] * n)
            run_engine(table, s, fast_forward=False, scheduler=watched)
            first_end.append(min(watched.finished_after))
            shapes.append([(b.chunks, b.num_decodes, b.decode_context_tokens) for b in watched.batches])
        until = min(first_end) + 1
        assert shapes[0][:until] == shapes[1][:until]

    holds()


@every_mode
def test_an_empty_queue_asks_for_nothing(policy, allocator, drafts):
    """With nobody there a policy schedules nothing, and asks not to be woken."""
    scheduler = build_scheduler(small_settings(policy, allocator, speculation=drafts))
    assert scheduler.schedule(0, more_coming=True) is None
    assert scheduler.schedule(5, more_coming=False) is None


@every_allocator
def test_only_a_cache_that_can_preempt_does(allocator):
    """Contiguous reservations cover a whole life, and static groups their declared maxima: neither ever preempts."""
    for policy in (policy for policy, its_allocator in COMBINATIONS if its_allocator == allocator):
        records = run_engine(skewed64(), small_settings(policy, allocator, num_blocks=24))
        may = allocator == "paged" and policy != "static"
        assert (records.num_preemptions > 0) == may


@every_mode
def test_a_refusal_is_a_sentence(policy, allocator, drafts):
    """What can never be served is refused at arrival with a reason that names the numbers."""
    table = table_of([0, 0, 0], [300, 5, 600], [30, 5, 1], [30, 5, 1])
    records = run_engine(table, small_settings(policy, allocator, num_blocks=20, speculation=drafts))
    assert sorted(records.requests.reject_reason) == [0, 2]
    assert "330" in records.requests.reject_reason[0]
    assert (records.requests.end_ns[[0, 2]] == 0).all()
    assert records.requests.status[1] == FINISHED


# Step-time models -------------------------------------------------------------------------------------------------

chunks = st.lists(st.builds(Chunk, st.integers(1, 64), st.integers(0, 300)), max_size=4)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    prefills, num_decodes = tuple(draw(chunks)), draw(st.integers(0, 8))
    assume(prefills or num_decodes)
    return Batch(prefills, num_decodes, sum(draw(st.integers(1, 500)) for _ in range(num_decodes)))


@every_model
def test_every_step_takes_time_and_every_ramp_goes_somewhere(model):
    """Durations are positive and finite, a ramp has at least one step, and one without an end never falls."""

    @run_briefly
    @given(batches(), st.integers(0, 2000))
    def holds(batch, step):
        ramp = model.ramp(batch, step)
        assert ramp.num_steps >= 1
        assert 0 < ramp.first_s < 1e6
        if ramp.num_steps >= UNBOUNDED:
            assert ramp.slope_s >= 0
        else:
            assert ramp.at(ramp.num_steps - 1) > 0

    holds()


@every_model
def test_a_ramp_started_later_is_the_same_curve(model):
    """Asked at any step, a model names the duration that the ramps before it lead to: no memory, no drift."""

    @run_briefly
    @given(batches())
    def holds(batch):
        stretch = Stretch(model, batch)
        for k in (0, 1, 2, 5, 17, 60, 200, 999):
            asked_s = model.ramp(batch, k).first_s
            assert stretch.span_s(k + 1) - stretch.span_s(k) == pytest.approx(asked_s, rel=1e-6, abs=1e-12)

    holds()


@every_model
def test_order_of_chunks_is_nothing_to_a_model(model):
    """A model sees a set of rows: the same ones in another order take the same time."""

    @run_briefly
    @given(batches())
    def holds(batch):
        times = [
            model.ramp(replace(batch, chunks=order), 0).first_s for order in itertools.permutations(batch.chunks[:3])
        ]
        assert times == pytest.approx([times[0]] * len(times), rel=1e-9)

    holds()


@every_model
@pytest.mark.parametrize(("policy", "allocator"), [(p, a) for p, a in COMBINATIONS if a != "contiguous"])
def test_the_clock_is_the_sum_of_the_models_steps(policy, allocator, model):
    """A run's busy time is the sum of single-step durations, to 1 ns per step."""
    s = small_settings(policy, allocator)
    watched = WatchedScheduler(build_scheduler(s))
    records = run_engine(skewed64(), s, model, fast_forward=False, scheduler=watched)
    spans = records.spans.columns()
    total_s, k = 0.0, 0
    for i, batch in enumerate(watched.batches):
        k = k + 1 if i and batch is watched.batches[i - 1] else 0
        total_s += model.ramp(batch.at_step(k), 0).first_s if batch.recomputes else model.ramp(batch, k).first_s
    busy_ns = (spans["end_ns"] - spans["begin_ns"])[spans["num_steps"] > 0].sum()
    assert busy_ns == pytest.approx(1e9 * total_s, abs=len(watched.batches))


@pytest.mark.parametrize("order", QUEUE_ORDERS)
def test_a_partial_group_waits_from_its_oldest_members_arrival(order):
    """``max_wait_s`` of 25 ms counts from the first of three who arrive 10 ms apart, whoever would be served first; who
    comes later does not put the start off."""
    table = table_of([0, 10 * MS, 20 * MS, 1000 * MS], [4] * 4, [3, 2, 1, 1], priorities=[2, 1, 0, 0])
    s = Settings("static", "contiguous", 4, 100, 100, num_blocks=1000, max_wait_s=0.025, queue_order=order)
    records = run_engine(table, s, ConstantStepTime(0.001))
    assert records.requests.first_scheduled_ns.tolist() == [25 * MS] * 3 + [1000 * MS]


@pytest.mark.parametrize(("budget", "served"), [(29, True), (28, False)])
def test_what_a_preemption_recomputes_must_fit_one_step_and_no_more(budget, served):
    """Without chunks, 20 + 10 tokens need a budget of 29: the last token of an answer is never computed."""
    s = Settings("continuous", "paged", 2, budget, 100, num_blocks=1000)
    refusal = build_scheduler(s).refusal(table_of([0], [20], [10])[0])
    assert (refusal is None) == served
