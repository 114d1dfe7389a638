"""The numbered laws of the engine, under random workloads, policies, allocators and clocks.

They hold for any correct engine, so nothing here knows how this one works: only records, and what a policy was asked.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simserve.clients import STAYS
from simserve.kv_cache import ContiguousAllocator, PagedAllocator
from simserve.records import (
    BACKING_OFF,
    CANCELLED,
    FINISHED,
    NEVER,
    REJECTED,
    RUNNING,
    TIMED_OUT,
    WAITING,
    Records,
    RequestRecords,
)
from simserve.request import Request, RequestTable, Sequence
from tests.builders import build_scheduler, run_engine
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime
from tests.strategies import MS, Case, client_cases, durations, speculations, table_of
from tests.watched import WatchedScheduler

run_briefly = settings(max_examples=100, deadline=None)
ENDED = (FINISHED, REJECTED, CANCELLED, TIMED_OUT)


def every_case(**fixed: object) -> st.SearchStrategy[Case]:
    """Runs of every kind, as many with prompts that begin alike and a cache that makes use of it, and as many that
    speculate, over either."""
    kinds = client_cases(**fixed), client_cases(prefix_caching=True, **fixed)
    speculating = st.tuples(speculations(), st.booleans()).flatmap(
        lambda drawn: client_cases(speculation=drawn[0], prefix_caching=drawn[1], **fixed)
    )
    return st.one_of(*kinds, speculating)


def run(case: Case, **more) -> Records:
    return run_engine(case.table, case.settings, case.step_time, clients=case.clients, **more)


def everything(records: Records) -> dict[str, bytes]:
    """All that was recorded, as bytes."""
    requests = records.requests
    columns = {f.name: getattr(requests, f.name) for f in dataclasses.fields(requests) if f.name not in ("table",)}
    found = {name: np.asarray(column).tobytes() for name, column in columns.items() if name != "reject_reason"}
    found["reject_reason"] = repr(sorted(requests.reject_reason.items())).encode()
    for part in ("spans", "occupancy", "look_ups"):
        found |= {f"{part}.{name}": column.tobytes() for name, column in getattr(records, part).columns().items()}
    found["itl_counts"] = records.itl_counts.tobytes()
    scalars = [f.name for f in dataclasses.fields(records) if isinstance(getattr(records, f.name), int | float)]
    return found | {name: repr(getattr(records, name)).encode() for name in scalars}


@run_briefly
@given(every_case())
def test_every_request_is_somewhere_at_every_decision(case):
    """INV-1: at every decision, arrived = finished + rejected + cancelled + timed out + backing off + waiting +
    running; at the end, nobody is left. (Who backs off when is not recorded, only how long in all.)"""
    records = run(case)
    r, spans = records.requests, records.spans.columns()
    for now, waiting, running in zip(
        spans["begin_ns"], spans["num_waiting_begin"], spans["num_running_begin"], strict=True
    ):
        unended = (r.arrival_ns <= now) & (r.end_ns > now)
        num_away = unended.sum() - waiting - running
        assert 0 <= num_away <= (unended & (r.away_ns > 0)).sum()
    assert np.isin(r.status, ENDED).all()
    assert records.num_arrived == len(case.table)


@run_briefly
@given(every_case(), durations(least=0))
def test_everybody_is_somewhere_when_a_run_is_stopped(case, stop_ns):
    """INV-1 and INV-8 in the middle of a run: those sent so far are in seven places, as many waiting and running as the
    policy has, and ∫ (waiting + running) dt counts up to the stop."""
    scheduler = build_scheduler(case.settings)
    records = run(case, scheduler=scheduler, stop_when=lambda now_ns, *_: now_ns >= stop_ns)
    r, sent = records.requests, records.requests.num_attempts > 0
    assert records.num_arrived == sent.sum()
    unended = np.isin(r.status, (WAITING, RUNNING, BACKING_OFF)) & sent
    assert (unended == (sent & (r.end_ns == NEVER))).all()
    present = unended & (r.status != BACKING_OFF)
    assert present.sum() == len(scheduler.pool.waiting) + scheduler.pool.num_running
    if records.stopped_ns == NEVER:
        assert not unended.any()
        return
    assert records.stopped_ns >= stop_ns
    until_ns = np.where(unended, records.stopped_ns, r.end_ns)
    assert records.in_system_ns == int((until_ns - r.arrival_ns - r.away_ns)[sent].sum())


@run_briefly
@given(every_case())
def test_blocks_are_free_or_held_and_all_free_at_the_end(case):
    """INV-2: at every decision free + held = total, no block stands in two tables but where prompts begin alike, and
    then its reference count says so; at the end all are free."""
    watched = WatchedScheduler(build_scheduler(case.settings))
    run(case, scheduler=watched)
    watched.assert_memory_adds_up()
    assert all(not held for held in watched.held_now().values())


@run_briefly
@given(every_case())
def test_nothing_happens_before_its_cause(case):
    """INV-3: arrival ≤ first scheduled < first token ≤ last token ≤ end, as far as a request came, and spans follow one
    another."""
    records = run(case)
    r, done = records.requests, records.requests.status == FINISHED
    assert (r.arrival_ns <= r.end_ns).all()
    stages = [r.arrival_ns, r.first_scheduled_ns, r.first_token_ns, r.last_token_ns, r.end_ns]
    for before, after in itertools.pairwise(stages):
        assert (before <= after)[(before != NEVER) & (after != NEVER)].all()
        assert (before != NEVER)[done].all()
    assert (r.arrival_ns + r.away_ns <= r.first_scheduled_ns)[done].all()
    assert (r.first_scheduled_ns < r.first_token_ns)[done].all()
    drafts = case.settings.speculation
    num_steps = np.ceil((case.table.num_output_tokens - 1) / (1 + drafts.num_drafts if drafts else 1))
    assert (r.last_token_ns - r.first_token_ns >= num_steps)[done].all()  # a step takes time
    spans = records.spans.columns()
    assert (spans["begin_ns"] <= spans["end_ns"]).all()
    assert (spans["end_ns"][:-1] == spans["begin_ns"][1:]).all()


@run_briefly
@given(every_case())
def test_a_slot_is_one_request_s_at_a_time(case):
    """INV-3 and INV-6 for slots: whoever sits in one is admitted, then decodes, then has nothing more to compute, then
    is gone; nobody else sits there meanwhile, and there are no more slots than ``max_num_seqs``."""
    slots = run(case).occupancy.columns()
    assert ((slots["slot"] >= 0) & (slots["slot"] < case.settings.max_num_seqs)).all()
    stages = [slots[name] for name in ("admitted_ns", "decoding_ns", "idle_ns", "released_ns")]
    for i, before in enumerate(stages):
        for after in stages[i + 1 :]:
            assert (before <= after)[(before != NEVER) & (after != NEVER)].all()
    order = np.lexsort((slots["admitted_ns"], slots["slot"]))
    begin, end = slots["admitted_ns"][order][1:], slots["released_ns"][order][:-1]
    assert (end <= begin)[np.diff(slots["slot"][order]) == 0].all()


@run_briefly
@given(every_case())
def test_the_engine_idles_only_when_the_policy_says_so(case):
    """INV-4: time is either in a step or in a gap for which the policy scheduled nothing; a policy that never waits
    on purpose leaves nobody waiting in such a gap."""
    watched = WatchedScheduler(build_scheduler(case.settings))
    spans = run(case, scheduler=watched).spans.columns()
    idle = spans["num_steps"] == 0
    assert set(spans["begin_ns"][idle].tolist()) <= set(watched.idle_times_ns)
    if case.settings.policy != "static":
        assert not spans["num_waiting_begin"][idle].any()


@run_briefly
@given(every_case())
def test_tokens_are_conserved(case):
    """INV-5: emitted is what the finished asked for and what the others had got, in all their attempts; computed is
    what each request had in the cache and what preemptions threw away, less what it found there: prompt + answer − 1 +
    recomputed − hits for one that was answered at its first attempt; and the drafts that were rejected."""
    records = run(case)
    r, done = records.requests, records.requests.status == FINISHED
    asked = case.table.num_output_tokens
    assert (r.num_emitted_tokens[done] == asked[done]).all()
    assert (r.num_emitted_tokens <= asked).all()
    assert not r.num_emitted_tokens[r.first_scheduled_ns == NEVER].any()
    assert not r.num_abandoned_tokens[r.num_attempts == 1].any()
    emitted = int((r.num_emitted_tokens + r.num_abandoned_tokens).sum())
    assert records.spans.columns()["num_emitted_tokens"].sum() == emitted
    assert records.num_computed_tokens == r.num_computed_tokens.sum() + records.num_rejected_tokens
    once = done & (r.num_attempts == 1)
    needed = case.table.num_prompt_tokens + asked - 1 + r.num_recomputed_tokens - r.num_prefix_hit_tokens
    assert (r.num_computed_tokens[once] == needed[once]).all()
    if case.settings.allocator == "none":  # what was known, again for every token: NP + N(N − 1)/2
        whole = asked * case.table.num_prompt_tokens + asked * (asked - 1) // 2
        assert (r.num_computed_tokens[once] == whole[once]).all()
    if (r.num_attempts == 1).all():
        assert records.num_recomputed_tokens == r.num_recomputed_tokens.sum()
        assert records.num_prefix_hit_tokens == r.num_prefix_hit_tokens.sum()
        assert records.itl_counts.sum() == emitted - (r.num_emitted_tokens > 0).sum()  # one gap between each two tokens


@run_briefly
@given(every_case())
def test_limits_hold_in_every_batch(case):
    """INV-6: rows ≤ max_num_seqs, tokens ≤ max_num_batched_tokens, cache ≤ its capacity, what can still be found of it
    beyond what is held included."""
    watched = WatchedScheduler(build_scheduler(case.settings))
    records = run(case, scheduler=watched)
    s = case.settings
    assert all(1 <= batch.num_seqs <= s.max_num_seqs for batch in watched.batches)
    assert all(1 <= batch.num_batched_tokens <= s.max_num_batched_tokens for batch in watched.batches)
    spans = records.spans.columns()
    if s.allocator == "none":  # rows grow while a decision stands
        grown = spans["num_seqs"] * np.maximum(spans["num_steps"] - 1, 0)
        assert (spans["num_prefill_tokens"] + grown <= s.max_num_batched_tokens).all()
    for when in ("begin", "end"):
        names = "kv_used", "kv_reserved_unused", "kv_internal", "kv_cached_free"
        parts = [spans[f"{name}_{when}"] for name in names]
        assert all((part >= 0).all() for part in parts)
        assert (sum(parts) <= records.capacity_tokens).all()


@run_briefly
@given(every_case(allocator="paged"))
def test_paging_wastes_less_than_a_block_per_sequence(case):
    """PagedAttention (SOSP'23): only the tail of a last block is ever held in vain, so with blocks of one token nothing
    is; what a step is about to fill is no waste, however long its prompts. (Rows of a static batch that clients left
    hold theirs, and run for nobody.)"""
    spans = run(case).spans.columns()
    holders = np.maximum(spans["num_running_begin"], spans["num_seqs"])
    for when in ("begin", "end"):
        assert (spans[f"kv_internal_{when}"] <= (case.settings.block_size - 1) * holders).all()


@run_briefly
@given(every_case())
def test_the_same_run_gives_the_same_bytes(case):
    """INV-7, first half: determinism."""
    assert everything(run(case)) == everything(run(case))


@settings(max_examples=250, deadline=None)
@given(every_case())
def test_fast_forward_changes_nothing(case):
    """INV-7, second half: on = off, bit for bit, on every column, histogram and counter."""
    assert everything(run(case, fast_forward=True)) == everything(run(case, fast_forward=False))


@run_briefly
@given(every_case(tight=True, allocator="paged"))
def test_fast_forward_changes_nothing_under_memory_pressure(case):
    """INV-7, second half, where preemptions cut the stretches."""
    assert everything(run(case, fast_forward=True)) == everything(run(case, fast_forward=False))


@run_briefly
@given(every_case())
def test_littles_law_is_exact(case):
    """INV-8: ∫ (waiting + running) dt as counted = Σ (end − arrival − backing off), in integers."""
    records = run(case)
    r = records.requests
    assert records.in_system_ns == int((r.end_ns - r.arrival_ns - r.away_ns).sum())


@run_briefly
@given(every_case(tight=True))
def test_every_admitted_request_ends(case):
    """INV-9: under a cache barely larger than one request, all that was accepted finishes unless its client leaves,
    each step computing something; nobody makes more attempts than he may; nothing that fits is rejected."""
    records = run(case)
    r, plan = records.requests, case.clients
    ends = [FINISHED, REJECTED]
    ends += [CANCELLED] if plan.cancel_after_ns is not None else []
    ends += [TIMED_OUT] if plan.timeout_ns or plan.ttft_timeout_ns else []
    assert np.isin(r.status, ends).all()
    assert (r.num_attempts <= (plan.retry.max_attempts if plan.retry else 1)).all()
    assert records.num_steps <= records.num_computed_tokens
    assert records.num_preemptions <= records.num_computed_tokens
    full = [i for i, reason in r.reject_reason.items() if reason.startswith("429")]
    assert not full or case.settings.max_queued_requests is not None
    never = build_scheduler(case.settings).refusal
    assert {i for i in range(len(case.table)) if never(case.table[i])} == set(r.reject_reason) - set(full)


@run_briefly
@given(client_cases(queue_order="priority"), st.sampled_from(["continuous", "chunked"]), durations())
def test_a_client_that_leaves_the_end_of_the_queue_was_never_there(case, policy, patience_ns):
    """Whoever waits behind all others and leaves unserved changes nothing for them."""
    n, table = len(case.table), case.table
    columns = {
        f.name: getattr(table, f.name)
        for f in dataclasses.fields(table)
        if f.name not in ("content", "tenants", "session")
    }
    last = {"arrival_ns": columns["arrival_ns"][-1], "priority": 9}
    longer = RequestTable(**{name: np.append(column, last.get(name, column[-1])) for name, column in columns.items()})
    s = dataclasses.replace(case.settings, policy=policy, max_queued_requests=None)
    cancel = case.clients.cancel_after_ns
    patience = np.append(np.full(n, STAYS) if cancel is None else cancel, patience_ns)
    clients = dataclasses.replace(case.clients, concurrency=None, think_ns=None, retry=None, turns=None)
    with_him = run_engine(longer, s, case.step_time, clients=dataclasses.replace(clients, cancel_after_ns=patience))
    assume(with_him.requests.first_scheduled_ns[n] == NEVER)
    without = run_engine(table, s, case.step_time, clients=clients)
    for name in (*RequestRecords.TIMES, *RequestRecords.COUNTS, "status"):
        assert (getattr(with_him.requests, name)[:n] == getattr(without.requests, name)).all(), name
    assert (with_him.num_steps, with_him.swapped_bytes) == (without.num_steps, without.swapped_bytes)


@pytest.mark.parametrize(("policy", "slack_ns"), [("chunked", 0), ("continuous", None)])
@run_briefly
@given(st.data())
def test_continuous_finishes_nobody_later_than_static(policy, slack_ns, data):
    """INV-10, first half: constant steps, free prefill, FCFS, unlimited cache, arrivals on step boundaries. (A policy
    that prefills alone has free prefills of 1 ns, the clock's tick: its slack is one tick per prefill before.)"""
    n = data.draw(st.integers(1, 12))
    lengths = st.lists(st.integers(1, 12), min_size=n, max_size=n)
    arrivals = np.cumsum(data.draw(st.lists(st.sampled_from([0, 0, 1, 5]), min_size=n, max_size=n))) * MS
    table = table_of(arrivals.tolist(), data.draw(lengths), data.draw(lengths))
    slots = data.draw(st.integers(1, 4))
    s = Settings("static", "paged", slots, 10_000, 100, num_blocks=10_000)
    step_time = FreePrefill() if policy == "continuous" else ConstantStepTime(0.001)
    static_end = run_engine(table, s, step_time).requests.last_token_ns
    end = run_engine(table, dataclasses.replace(s, policy=policy), step_time).requests.last_token_ns
    assert (end <= static_end + (n if slack_ns is None else slack_ns)).all()


class FreePrefill(ConstantStepTime):
    """Decode steps of 1 ms; a prefill takes the clock's tick."""

    def __init__(self) -> None:
        super().__init__(0.001)

    def ramp(self, batch, step):
        ramp = super().ramp(batch, step)
        return ramp if batch.num_decodes else ramp._replace(first_s=1e-9)


@run_briefly
@given(
    capacity=st.integers(1, 100),
    reserve=st.sampled_from(["max_model_len", "max_tokens", "oracle"]),
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(0, 5)), max_size=12),
)
def test_paged_holds_whatever_contiguous_holds(capacity, reserve, lengths):
    """INV-10, second half: with blocks of one token, no watermark and no null block, paged takes any set that
    contiguous takes, at its full length."""
    contiguous = ContiguousAllocator(capacity, reserve, max_model_len=45)
    paged = PagedAllocator(capacity, 1, max_model_len=45, watermark=0.0)
    assume(lengths)
    for i, (prompt, output, extra) in enumerate(lengths):
        seq = Sequence(Request(i, 0, prompt, output, output + extra))
        if contiguous.can_admit(seq):
            contiguous.allocate(seq, prompt)
            assert paged.can_admit(seq)
            paged.allocate(seq, seq.request.num_total_tokens)
