"""The reference engine agrees with itself: bookkeeping that any correct engine keeps, checked on its plain lists."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.clients import STAYS
from simserve.step_time.stretch import NS_PER_S, Stretch
from tests.reference import Reference
from tests.references import run_reference
from tests.step_times import MODELS
from tests.strategies import Case, cases, client_cases, speculations

run_briefly = settings(max_examples=150, deadline=None)


def every_mode() -> st.SearchStrategy[Case]:
    """Runs of every kind, as many that speculate."""
    return st.one_of(client_cases(), speculations().flatmap(lambda drafts: client_cases(speculation=drafts)))


def run(case: Case) -> Reference:
    return run_reference(case)


@run_briefly
@given(client_cases())
def test_every_request_ends_and_its_tokens_come_in_order(case):
    """INV-1, INV-3, INV-9: everyone ends, in one of four ways; arrival, schedule, then tokens one after another."""
    for ask in run(case).asks:
        assert ask.status in ("finished", "rejected", "cancelled", "timed_out")
        for seq in ask.attempts:
            times = [seq.arrival_ns, *[seq.first_scheduled_ns][: len(seq.token_ns)], *seq.token_ns]
            assert times == sorted(times)
            assert len(set(times[1:])) == len(times[1:])  # a step takes time
        if ask.status == "finished":
            assert len(ask.attempts[-1].token_ns) == ask.request.num_output_tokens
            assert ask.attempts[-1].token_ns[-1] <= ask.end_ns


@run_briefly
@given(every_mode())
def test_tokens_computed_are_prompts_plus_answers_less_the_last_plus_recomputed(case):
    """INV-5: what the steps pushed through is what is in the caches at the end, what preemptions threw away and the
    drafts that were rejected; for an answer that is whole, prompt + output − 1."""
    reference = run(case)
    computed = sum(work.num_new for step in reference.steps for work in step.works)
    thrown_away = sum(seq.num_recomputed_tokens + seq.num_rejected_tokens for seq in reference.seqs)
    assert computed == sum(seq.computed for seq in reference.seqs) + thrown_away
    for seq in reference.seqs:
        if seq.is_done:
            assert seq.computed == seq.request.num_total_tokens - 1


@run_briefly
@given(client_cases())
def test_clients_keep_to_their_plan(case):
    """Nobody is present longer than the patience he was given, nor tries more often than his retries allow, and he is
    away between two attempts as long as his backoff says, to the least."""
    plan, retry = case.clients, case.clients.retry
    for ask in run(case).asks:
        assert len(ask.attempts) <= (retry.max_attempts if retry else 1)
        assert len(ask.absences) - (ask.status == "cancelled") <= len(ask.attempts) - 1 <= len(ask.absences)
        assert ask.num_timed_out + ask.num_turned_away <= len(ask.attempts)
        if plan.cancel_after_ns is not None and plan.cancel_after_ns[ask.id] != STAYS:
            assert ask.end_ns <= ask.arrival_ns + plan.cancel_after_ns[ask.id]
        if plan.timeout_ns is not None:
            assert ask.end_ns - ask.attempts[-1].arrival_ns <= plan.timeout_ns or ask.status == "cancelled"
        for i, (left_ns, back_ns) in enumerate(ask.absences):
            ceiling = min(retry.max_backoff_ns, retry.backoff_ns * retry.multiplier**i)
            assert back_ns - left_ns <= max(case.settings.retry_after_ns, ceiling + 1)


@run_briefly
@given(every_mode())
def test_littles_law(case):
    """INV-8: at the begin of each step as many are waiting and running as have arrived, have not ended, and do not back
    off."""
    reference = run(case)
    for step in reference.steps:
        now, present = step.begin_ns, 0
        for ask in reference.asks:
            away = any(left <= now < back for left, back in ask.absences)
            present += ask.arrival_ns <= now < ask.end_ns and not away
        assert step.num_waiting + step.num_running == present


@run_briefly
@given(client_cases())
def test_a_closed_loop_never_has_more_in_the_system_than_clients(case):
    """Each client waits for its answer: at most ``concurrency`` are present; rows are sent in order, of sessions the
    first ones, as each client plays its session to the end."""
    if case.clients.concurrency is None:
        return
    reference = run(case)
    assert all(step.num_waiting + step.num_running <= case.clients.concurrency for step in reference.steps)
    if case.clients.think_ns is None:
        later = set() if case.clients.turns is None else set(case.clients.turns.next_id.tolist())
        arrivals = [ask.arrival_ns for i, ask in enumerate(reference.asks) if i not in later]
        assert arrivals == sorted(arrivals)


@run_briefly
@given(every_mode())
def test_limits_hold_in_every_step_and_the_cache_is_empty_at_the_end(case):
    """INV-2, INV-6: rows and tokens under their limits, reserved under capacity, everything given back."""
    reference, s = run(case), case.settings
    capacity = (s.num_blocks - (s.null_blocks if s.allocator == "paged" else 0)) * s.block_size
    capacity = 0 if s.allocator == "none" else capacity
    for step in reference.steps:
        assert 1 <= step.num_seqs <= s.max_num_seqs
        assert step.batch.num_batched_tokens <= s.max_num_batched_tokens
        assert min(1, capacity) <= step.reserved_tokens <= capacity
    assert not reference.paged.tables
    assert reference.row.reserved_tokens == 0


@run_briefly
@given(client_cases())
def test_steps_follow_each_other_and_repeat_only_the_same_work(case):
    """INV-3: no step begins before the last one ended; a repeat is the same sequences with the same new tokens
    (without a cache, one more each)."""
    steps = run(case).steps
    for before, step in itertools.pairwise(steps):
        assert before.end_ns <= step.begin_ns < step.end_ns
        if step.is_repeat:
            assert before.end_ns == step.begin_ns
            assert step.num_seqs == before.num_seqs
            assert step.num_prefill_tokens == before.num_prefill_tokens + step.batch.recomputes * step.num_seqs


@run_briefly
@given(every_mode())
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
            again = step.batch.recomputes
            total_s += step_time.seconds(step.batch.at_step(k) if again else step.batch, 0 if again else k)
            assert stretch.span_s(k + 1) == pytest.approx(total_s, rel=1e-9)
