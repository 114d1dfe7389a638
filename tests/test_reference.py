"""The reference engine agrees with itself: bookkeeping that any correct engine keeps, checked on its plain lists."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings

from simserve.step_time.stretch import NS_PER_S, Stretch
from tests.reference import Reference
from tests.step_times import MODELS
from tests.strategies import Case, cases

run_briefly = settings(max_examples=150, deadline=None)


def run(case: Case) -> Reference:
    return Reference(case.table, case.settings, case.step_time).run()


@run_briefly
@given(cases())
def test_every_request_ends_with_all_its_tokens_in_order(case):
    """INV-1, INV-3, INV-9: finished or rejected; arrival, schedule, then tokens one after another."""
    for seq in run(case).seqs:
        assert seq.status in ("finished", "rejected")
        if seq.status == "finished":
            times = [seq.request.arrival_ns, seq.first_scheduled_ns]
            assert times[0] <= times[1] < seq.token_ns[0]
            assert all(a < b for a, b in itertools.pairwise(seq.token_ns))
            assert len(seq.token_ns) == seq.request.num_output_tokens
            assert seq.token_ns[-1] <= seq.end_ns


@run_briefly
@given(cases())
def test_tokens_computed_are_prompts_plus_answers_less_the_last_plus_recomputed(case):
    """INV-5: what the steps pushed through is what the requests needed, and nothing else."""
    reference = run(case)
    done = [seq for seq in reference.seqs if seq.status == "finished"]
    computed = sum(work.num_new for step in reference.steps for work in step.works)
    needed = sum(seq.request.num_total_tokens - 1 + seq.num_recomputed_tokens for seq in done)
    assert computed == needed


@run_briefly
@given(cases())
def test_limits_hold_in_every_step_and_the_cache_is_empty_at_the_end(case):
    """INV-2, INV-6: rows and tokens under their limits, reserved under capacity, everything given back."""
    reference, s = run(case), case.settings
    capacity = (s.num_blocks - (s.null_blocks if s.allocator == "paged" else 0)) * s.block_size
    for step in reference.steps:
        assert 1 <= step.num_seqs <= s.max_num_seqs
        assert step.num_prefill_tokens + step.num_decodes <= s.max_num_batched_tokens
        assert 0 < step.reserved_tokens <= capacity
    assert not reference.paged.held
    assert reference.row.holes() == [(0, s.num_blocks * s.block_size)]


@run_briefly
@given(cases())
def test_steps_follow_each_other_and_repeat_only_the_same_work(case):
    """INV-3: no step begins before the last one ended; a repeat is the same sequences with the same new tokens."""
    steps = run(case).steps
    for before, step in itertools.pairwise(steps):
        assert before.end_ns <= step.begin_ns < step.end_ns
        if step.is_repeat:
            assert before.end_ns == step.begin_ns
            assert step.num_seqs == before.num_seqs
            assert step.num_prefill_tokens == before.num_prefill_tokens


@run_briefly
@given(cases())
def test_each_step_takes_its_plain_duration(case):
    """The clock rule never drifts: a step lasts its model's plain seconds (plus its swaps) to 2 ns."""
    for step in run(case).steps:
        plain_s = case.step_time.seconds(step.batch, 0)
        if not step.is_repeat:
            plain_s += step.batch.transfer_bytes / case.settings.swap_bytes_per_s
        assert abs(step.end_ns - step.begin_ns - NS_PER_S * plain_s) <= 2


@pytest.mark.parametrize("step_time", MODELS, ids=lambda model: type(model).__name__)
@run_briefly
@given(case=cases())
def test_ramps_of_the_test_models_are_their_plain_formula(step_time, case):
    """A test model's ramps add up to its plain seconds, step by step."""
    for step in run(case).steps[:3]:
        stretch, total_s = Stretch(step_time, step.batch), 0.0
        for k in range(50):
            total_s += step_time.seconds(step.batch, k)
            assert stretch.span_s(k + 1) == pytest.approx(total_s, rel=1e-9)
