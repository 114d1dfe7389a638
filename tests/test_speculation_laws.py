"""The numbered laws of the engine with speculation on, under any workload, policy, cache, clients and clock."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.kv_cache import PagedAllocator
from simserve.records import CANCELLED, FINISHED, NEVER, REJECTED, TIMED_OUT
from simserve.request import Batch
from simserve.speculation.acceptance import Acceptance
from tests.builders import run_engine
from tests.speculation_builders import acceptances, fitting, run_speculating, speculating
from tests.step_times import ConstantStepTime
from tests.strategies import Case, cases, client_cases
from tests.test_invariants import everything
from tests.watched import WatchedScheduler

run_briefly = settings(max_examples=60, deadline=None)
POLICIES = st.sampled_from(["continuous", "chunked"])


@st.composite
def speculative(draw: st.DrawFn, with_clients: bool = True, tight: bool = False) -> tuple[Case, Acceptance]:
    """A whole run with speculation; in tight caches running sequences fight for the blocks of their drafts."""
    fixed = {"policy": draw(POLICIES), "preemption": "recompute", "prefix_caching": draw(st.booleans())}
    if tight:
        fixed |= {"allocator": "paged", "prefix_caching": False}
    case = draw((client_cases if with_clients else cases)(tight=tight, **fixed))
    acceptance = draw(acceptances())
    return replace(case, settings=fitting(case.settings, acceptance)), acceptance


def run(case: Case, acceptance: Acceptance, **more):
    return run_speculating(case.table, case.settings, acceptance, case.step_time, clients=case.clients, **more)


@run_briefly
@given(speculative())
def test_tokens_are_conserved(drawn):
    """INV-5: computed = Σ kept or recomputed by anybody + rejected drafts; of the finished, prompt + output − 1 +
    recomputed − hits; emitted = what the answers have; a pass gives one token and what it accepted, cut at ends."""
    case, acceptance = drawn
    records = run(case, acceptance)
    r, table = records.requests, case.table
    assert records.num_computed_tokens == r.num_computed_tokens.sum() + records.num_rejected_tokens
    finished = (r.status == FINISHED) & (r.num_attempts == 1)
    kept = table.num_prompt_tokens + table.num_output_tokens - 1
    expected = kept + r.num_recomputed_tokens - r.num_prefix_hit_tokens
    assert (r.num_computed_tokens == expected)[finished].all()
    assert (r.num_emitted_tokens == table.num_output_tokens)[r.status == FINISHED].all()
    spans = records.spans.columns()
    assert spans["num_emitted_tokens"].sum() == r.num_emitted_tokens.sum() + r.num_abandoned_tokens.sum()
    drafted = records.num_passes * acceptance.num_drafts
    assert 0 <= drafted - records.num_rejected_tokens <= records.num_accepted_tokens <= drafted


@run_briefly
@given(speculative())
def test_gaps_are_those_of_all_tokens(drawn):
    """As many gaps as tokens after the first of each attempt, and together the time from first to last token."""
    case, acceptance = drawn
    records = run(case, acceptance)
    r = records.requests
    finished = r.status == FINISHED
    if finished.all() and (r.num_attempts == 1).all():
        assert records.itl_counts.sum() == (case.table.num_output_tokens - 1).sum()
        assert records.itl_sum_ns == (r.last_token_ns - r.first_token_ns).sum()


@run_briefly
@given(speculative(tight=True))
def test_memory_adds_up_and_holds_what_it_should(drawn):
    """INV-2, in caches that bind: free + held = total at every decision and no block in two tables; before a pass every
    decode holds blocks for its drafts, and whoever waits for a prefill step for what it has computed."""
    case, acceptance = drawn
    watched = WatchedScheduler(speculating(case.settings, acceptance))
    allocator, pool, num_new = watched.pool.allocator, watched.pool, 1 + acceptance.num_drafts
    assert isinstance(allocator, PagedAllocator)
    schedule = watched.schedule

    def look(now_ns, more_coming):
        decision = schedule(now_ns, more_coming)
        if isinstance(decision, Batch):
            for seq in pool.cohort:
                declared = seq.request.num_prompt_tokens + seq.request.max_output_tokens
                most = min(declared, case.settings.max_model_len)
                new = num_new if decision.num_decodes else 0
                needed = min(seq.num_computed_tokens + new, most)
                assert len(allocator.table(seq)) == -(-needed // allocator.block_size)
        return decision

    watched.schedule = look
    run(case, acceptance, scheduler=watched)
    watched.assert_memory_adds_up()
    assert allocator.num_free_blocks == allocator.num_usable_blocks


@run_briefly
@given(speculative())
def test_steps_keep_their_limits(drawn):
    """INV-6: no more rows than slots, no more tokens than the budget with γ + 1 per decode; used and reserved tokens
    stay within the cache."""
    case, acceptance = drawn
    watched = WatchedScheduler(speculating(case.settings, acceptance))
    records = run(case, acceptance, scheduler=watched)
    watched.assert_memory_adds_up()
    for batch, steady in zip(watched.batches, watched.steady, strict=True):
        assert batch.num_seqs <= case.settings.max_num_seqs
        assert batch.num_batched_tokens <= case.settings.max_num_batched_tokens
        assert batch.tokens_per_decode == 1 + acceptance.num_drafts
        assert steady == 1
    spans = records.spans.columns()
    for end in ("begin", "end"):
        parts = [spans[f"kv_{part}_{end}"] for part in ("used", "reserved_unused", "internal")]
        assert all((part >= 0).all() for part in parts)
        assert (sum(parts) <= records.capacity_tokens).all()


@run_briefly
@given(speculative())
def test_same_seed_same_bytes_and_nothing_to_skip(drawn):
    """INV-7: run again, and with fast-forward off: the same records."""
    case, acceptance = drawn
    records = everything(run(case, acceptance))
    again = Acceptance(acceptance.probabilities, acceptance._seed)
    assert everything(run(case, again)) == records
    assert everything(run(case, acceptance, fast_forward=False)) == records


@run_briefly
@given(speculative())
def test_littles_law_and_causes_before_effects(drawn):
    """INV-8 in integers, INV-3, and INV-1 at the end: everybody has ended somehow."""
    case, acceptance = drawn
    records = run(case, acceptance)
    r = records.requests
    assert records.in_system_ns == int((r.end_ns - r.arrival_ns - r.away_ns).sum())
    assert np.isin(r.status, (FINISHED, REJECTED, CANCELLED, TIMED_OUT)).all()
    done = r.status == FINISHED
    times = [
        column[done] for column in (r.arrival_ns, r.first_scheduled_ns, r.first_token_ns, r.last_token_ns, r.end_ns)
    ]
    assert all((before <= after).all() for before, after in itertools.pairwise(times))
    assert (times[1] < times[2]).all()


@run_briefly
@given(speculative(with_clients=False, tight=True))
def test_everyone_finishes_in_a_cache_barely_larger_than_one(drawn):
    """INV-9: whoever is admitted finishes, however often drafts of others take its blocks."""
    case, acceptance = drawn
    r = run(case, acceptance).requests
    assert np.isin(r.status, (FINISHED, REJECTED)).all()
    assert (r.first_scheduled_ns[r.status == REJECTED] == NEVER).all()


@run_briefly
@given(speculative(with_clients=False), POLICIES, st.integers(1, 4))
def test_nobody_changes_what_another_accepts(drawn, policy, max_num_seqs):
    """Each alone in a roomy cache, or all together, under either policy: a request takes as many passes. (A preemption
    emits a token without one, so only those that were never preempted are compared.)"""
    case, acceptance = drawn
    room = replace(case.settings, num_blocks=10_000, max_model_len=10_000, max_num_batched_tokens=10_000, watermark=0.0)
    room = replace(room, policy=policy, max_num_seqs=max_num_seqs, allocator="paged", prefix_caching=False)
    case = replace(case, table=replace(case.table, content=None), step_time=ConstantStepTime(0.001))
    together = run(replace(case, settings=room), acceptance)
    expected = 0
    for i in range(len(case.table)):
        done = 1
        while done < case.table.num_output_tokens[i]:
            done += 1 + acceptance.num_accepted(i, done)
            expected += 1
    assert together.num_passes == expected


@run_briefly
@given(speculative(with_clients=False))
def test_free_and_useless_drafts_change_no_time(drawn):
    """α 0, drafts that cost nothing and a constant step, in a roomy cache: everybody is served at the very times of an
    engine without speculation (within the rounding of a nanosecond per step, as each step is anchored anew)."""
    case, acceptance = drawn
    room = replace(
        case.settings,
        num_blocks=10_000,
        max_num_batched_tokens=10_000,
        allocator="paged",
        prefix_caching=False,
        watermark=0.0,
        policy="continuous",
    )
    table, useless = replace(case.table, content=None), Acceptance((0.0,) * acceptance.num_drafts, 0)
    clock = ConstantStepTime(0.001)
    plain = run_engine(table, room, clock).requests
    found = run_speculating(table, room, useless, clock).requests
    for name in ("first_scheduled_ns", "first_token_ns", "last_token_ns", "end_ns"):
        assert (getattr(plain, name) == getattr(found, name)).all()
