"""The real engine and the slow, obvious one agree: request by request, step by step, and on who held what memory."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simserve.compiled.run import run_if_plain
from simserve.engine import EngineOptions
from simserve.model_spec import load_model_spec
from simserve.records import Records, RequestRecords, itl_bin
from simserve.request import Batch
from simserve.step_time.hardware import load_hardware
from simserve.step_time.roofline import RooflineStepTime
from simserve.step_time.stretch import NS_PER_S
from tests.builders import build_scheduler, run_engine, skewed64
from tests.client_rules import RULES
from tests.reference import Reference
from tests.reference_clients import Ask
from tests.reference_types import Settings, Step, StepEnd
from tests.references import run_reference
from tests.step_times import ConstantStepTime
from tests.strategies import COMBINATIONS, MS, Case, cases, client_cases, speculations, table_of

run_briefly = settings(max_examples=60, deadline=None)

# Swap space runs out, so one victim must recompute and the other comes back from swap in the same decision: whoever was
# admitted last is preempted first, however each of them got its cache back.
MIXED_READMISSION = Case(
    table_of([0, 0, 0], [1, 1, 7], [15, 18, 8]),
    Settings(
        "continuous",
        "paged",
        max_num_seqs=3,
        max_num_batched_tokens=19,
        max_model_len=19,
        num_blocks=29,
        preemption="swap",
        swap_space_bytes=19 * 1024,
        swap_bytes_per_s=1e6,
    ),
    ConstantStepTime(0.001),
)

# A swapped sequence heads the queue when what is free would hold it, but not it and the next tokens of those who run:
# brought back now, it would be preempted in the same decision.
NO_ROOM_TO_DECODE = Case(
    table_of([0, 0, 0], [1, 4, 1], [3, 2, 2]),
    Settings("continuous", "paged", 3, 100, 100, num_blocks=6, preemption="swap", swap_space_bytes=10**9),
    ConstantStepTime(0.01),
)


def expected_row(ask: Ask) -> dict[str, int]:
    """A request as the records should have it: tokens as the client saw them, work as the engine did it."""
    seq = ask.attempts[-1]
    seen = [ns for ns in seq.token_ns if not seq.departed or ns <= seq.left_ns]
    is_whole = len(seen) == ask.request.num_output_tokens
    return {
        "status": RequestRecords.STATUSES.index(ask.status),
        "arrival_ns": ask.arrival_ns,
        "first_scheduled_ns": seq.first_scheduled_ns,
        "first_token_ns": seen[0] if seen else -1,
        "last_token_ns": seen[-1] if is_whole else -1,
        "end_ns": ask.end_ns,
        "num_emitted_tokens": len(seq.token_ns),
        "num_abandoned_tokens": ask.num_abandoned_tokens,
        "num_preemptions": seq.num_preemptions,
        "num_recomputed_tokens": seq.num_recomputed_tokens,
        "num_prefix_hit_tokens": seq.num_prefix_hit_tokens,
        "num_attempts": len(ask.attempts),
        "away_ns": ask.away_ns,
    }


def assert_requests_agree(records: Records, reference: Reference) -> None:
    requests = records.requests
    for ask in reference.asks:
        expected = expected_row(ask)
        assert {name: int(getattr(requests, name)[ask.id]) for name in expected} == expected, f"request {ask.id}"
        assert (ask.id in requests.reject_reason) == (ask.status == "rejected")
        assert requests.reject_reason.get(ask.id, "").startswith("429") == (ask.reason == "429")
    computed = [-sum(seq.num_rejected_tokens for seq in ask.attempts) for ask in reference.asks]
    for work in (work for step in reference.steps for work in step.works):
        computed[work.seq_id] += work.num_new
    assert requests.num_computed_tokens.tolist() == computed


def assert_totals_agree(records: Records, reference: Reference) -> None:
    works = [work for step in reference.steps for work in step.works]
    own = sum(work.num_new for work in works)
    assert records.num_steps == len(reference.steps)
    assert records.num_computed_tokens == own
    assert records.num_padding_tokens == sum(step.batch.num_batched_tokens for step in reference.steps) - own
    assert records.num_passes == sum(seq.num_passes for seq in reference.seqs)
    assert records.num_accepted_tokens == sum(seq.num_accepted_tokens for seq in reference.seqs)
    assert records.num_rejected_tokens == sum(seq.num_rejected_tokens for seq in reference.seqs)
    assert records.num_attention_pairs == sum(attention_pairs(step.batch) for step in reference.steps)
    assert records.num_preemptions == sum(seq.num_preemptions for seq in reference.seqs)
    assert records.num_recomputed_tokens == sum(seq.num_recomputed_tokens for seq in reference.seqs)
    assert records.swapped_bytes == reference.swapped_bytes
    assert records.num_turned_away == sum(ask.num_turned_away for ask in reference.asks)
    assert records.num_timed_out_attempts == sum(ask.num_timed_out for ask in reference.asks)
    assert_hits_agree(records, reference)
    assert (records.num_arrived, records.stopped_ns) == (len(reference.asks), -1)


def attention_pairs(batch: Batch) -> int:
    """Of one step, one token after the other: each attends to what its row has before it and to itself."""
    new = batch.tokens_per_decode
    pairs = new * batch.decode_context_tokens + batch.num_decodes * sum(range(1, new + 1))
    return pairs + sum(
        chunk.num_context_tokens + i for chunk in batch.chunks for i in range(1, chunk.num_new_tokens + 1)
    )


def assert_hits_agree(records: Records, reference: Reference) -> None:
    """Every admission looks its tokens up; the rate is over the first one of each attempt."""
    firsts = [seq.lookups[0] for seq in reference.seqs if seq.lookups]
    assert records.num_looked_up_tokens == sum(known for known, _ in firsts)
    assert records.num_found_tokens == sum(hit for _, hit in firsts)
    assert records.num_prefix_hit_tokens == sum(seq.num_prefix_hit_tokens for seq in reference.seqs)
    assert records.num_prefix_evictions == reference.paged.num_evictions
    columns = records.look_ups.columns().values()
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == reference.first_lookups


def assert_spans_agree(records: Records, reference: Reference) -> None:
    """Each span is a run of the reference's steps: same times, shape, queue, and memory at both its ends."""
    steps = iter(zip(reference.steps, reference.ends, strict=True))
    columns = records.spans.columns()
    for i in range(len(columns["begin_ns"])):
        span = {name: int(column[i]) for name, column in columns.items()}
        mine = list(itertools.islice(steps, span["num_steps"]))
        if mine:
            first, last = mine[0][0], mine[-1][0]
            assert (span["begin_ns"], span["end_ns"]) == (first.begin_ns, last.end_ns)
            assert_shapes_agree(span, [step for step, _ in mine])
            assert_memory_agrees(span, first, reference)
            assert span["kv_cached_free_begin"] == first.cached_free * reference.s.block_size
            assert span["num_emitted_tokens"] == sum(end.num_emitted for _, end in mine)
            assert_ends_agree(span, mine[-1][1], reference.s)
    assert next(steps, None) is None


def assert_ends_agree(span: dict[str, int], end: StepEnd, s: Settings) -> None:
    """What the last step leaves: nothing is given back yet, and of what was held nothing is to be filled any more
    (paged), or what was reserved beyond what the step filled."""
    assert (span["kv_used_end"], span["num_waiting_end"]) == (end.used_tokens, end.num_waiting)
    assert span["kv_used_end"] + span["kv_reserved_unused_end"] + span["kv_internal_end"] == end.reserved_tokens
    assert s.allocator == "contiguous" or span["kv_reserved_unused_end"] == 0
    assert span["kv_cached_free_end"] == end.cached_free * s.block_size


def assert_slots_agree(records: Records, reference: Reference) -> None:
    """Who sat in which slot from when to when. (Of the last to leave a static batch nothing idles.)"""
    columns = records.occupancy.columns()
    found = sorted(zip(*(column.tolist() for column in columns.values()), strict=True))
    mine = [
        (r.request_id, r.slot, r.admitted_ns, r.decoding_ns, r.idle_ns, r.released_ns) for r in reference.slots.rows
    ]

    def plain(row: tuple[int, ...]) -> tuple[int, ...]:
        *who, idle_ns, released_ns = row
        return (*who, released_ns if idle_ns == -1 else idle_ns, released_ns)

    assert sorted(map(plain, found)) == sorted(map(plain, mine))


def assert_shapes_agree(span: dict[str, int], steps: list[Step]) -> None:
    shape = span["num_seqs"], span["num_decodes"]
    assert all((step.num_seqs, step.num_decodes) == shape for step in steps)
    grown = [step.num_seqs * i if step.batch.recomputes else 0 for i, step in enumerate(steps)]
    assert all(
        step.num_prefill_tokens == span["num_prefill_tokens"] + more for step, more in zip(steps, grown, strict=True)
    )
    assert (span["num_waiting_begin"], span["num_running_begin"]) == (steps[0].num_waiting, steps[0].num_running)
    assert span["num_finished_held"] == sum(step.num_seqs - len(step.works) for step in steps)


def assert_memory_agrees(span: dict[str, int], step: Step, reference: Reference) -> None:
    assert span["kv_used_begin"] == step.used_tokens
    held = span["kv_used_begin"] + span["kv_reserved_unused_begin"] + span["kv_internal_begin"]
    assert held == step.reserved_tokens
    if (
        reference.s.allocator == "paged"
    ):  # what is promised is what this step computes, but drafts that no answer reaches
        most = {ask.id: reference.s.declared(ask.request) for ask in reference.asks}
        coming = sum(min(work.num_new, most[work.seq_id] - work.num_context) for work in step.works)
        assert span["kv_reserved_unused_begin"] == coming
    assert span["kv_external"] == step.external_tokens


def assert_gaps_agree(records: Records, reference: Reference) -> None:
    """The histogram of inter-token gaps, value by value, to one bin (the clock rounds to whole nanoseconds)."""
    gaps = [(b - a) / NS_PER_S for seq in reference.seqs for a, b in itertools.pairwise(seq.token_ns)]
    assert records.itl_sum_ns == sum(seq.token_ns[-1] - seq.token_ns[0] for seq in reference.seqs if seq.token_ns)
    expected = np.array(sorted(itl_bin(gap) for gap in gaps), np.int64)
    found = np.repeat(np.arange(len(records.itl_counts)), records.itl_counts)
    assert len(found) == len(expected)
    assert np.count_nonzero(found == 0) == sum(gap == 0 for gap in gaps)  # tokens that come together
    assert not len(found) or np.abs(found - expected).max() <= 1
    assert records.itl_max_s == pytest.approx(max(gaps, default=0.0), abs=2e-9)


def assert_all_agree(records: Records, reference: Reference) -> None:
    """Everything that both have."""
    assert_requests_agree(records, reference)
    assert_totals_agree(records, reference)
    assert_gaps_agree(records, reference)
    assert_spans_agree(records, reference)
    assert_slots_agree(records, reference)


def check(case: Case, fast_forward: bool = True) -> None:
    records = run_engine(case.table, case.settings, case.step_time, fast_forward, clients=case.clients)
    assert_all_agree(records, run_reference(case))


@pytest.mark.parametrize(("policy", "allocator"), COMBINATIONS)
def test_every_policy_over_every_allocator(policy, allocator):
    """Any workload, limits, queue order and clock: the same records."""

    @run_briefly
    @given(client_cases(policy=policy, allocator=allocator))
    def agrees(case):
        check(case)

    agrees()


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("policy", ["continuous", "chunked"])
def test_under_memory_pressure(policy, preemption):
    """A cache of about one and a half requests: preempted, recomputed or swapped, and back, the same records."""

    @run_briefly
    @given(client_cases(policy=policy, allocator="paged", preemption=preemption, tight=True))
    @example(MIXED_READMISSION)
    @example(NO_ROOM_TO_DECODE)
    def agrees(case):
        check(case)

    agrees()


@pytest.mark.parametrize(("policy", "prompts"), [("continuous", [4, 4, 8, 1]), ("chunked", [3, 3, 7, 1])])
def test_a_victim_may_return_in_the_very_next_step(policy, prompts):
    """Three sequences need a block each and one is free: the shortest, admitted last, frees one, which is not enough,
    so the next frees two. Now the shortest heads the queue and fits: fast-forward may not run past that."""
    table = table_of([0, 0, 0, MS], prompts, [10, 10, 10, 5])
    s = Settings(policy, "paged", 4, 40, 20, num_blocks=6, block_size=4, queue_order="shortest_job_oracle")
    case = Case(table, s, ConstantStepTime(0.01))
    steps = run_reference(case).steps
    assert any(set(b.preempted) == {2, 3} and a.admitted == (3,) for b, a in itertools.pairwise(steps))
    check(case)


@pytest.mark.parametrize("policy", ["continuous", "chunked"])
def test_a_swapped_victim_may_return_in_the_very_next_step(policy):
    """Two are swapped out and the shorter is back at once, to decode on with nothing prefilled."""
    table = table_of([0, 0, 0], [2, 1, 5], [2, 2, 3])
    s = Settings(policy, "paged", 3, 100, 100, num_blocks=8, queue_order="shortest_job_oracle")
    case = Case(table, replace(s, preemption="swap", swap_space_bytes=10**9), ConstantStepTime(0.01))
    steps = run_reference(case).steps
    returns = [now for before, now in itertools.pairwise(steps) if set(before.preempted) & set(now.admitted)]
    assert any(not work.is_prefill for step in returns for work in step.works)
    check(case)


def test_a_victim_preempted_again_before_it_could_emit_has_one_gap():
    """A budget of three tokens recomputes in chunks, and the cache runs out again in the middle: the gap since the last
    token stays open and is counted once."""
    table = table_of([0, 0, 0], [1, 3, 1], [4, 5, 7])
    s = Settings("chunked", "paged", 3, 3, 100, num_blocks=9)
    check(Case(table, s, ConstantStepTime(0.01)))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_on_every_rule_of_clients(rule):
    """The cases worked out by hand: not only their outcomes, but every step, slot and block."""
    check(rule.case)


@run_briefly
@given(client_cases())
def test_step_by_step_too(case):
    """Fast-forward off: the same again."""
    check(case, fast_forward=False)


def test_the_64_real_requests():
    """Two hundred to seven hundred steps of each policy on the workload that real engines served."""
    for policy, allocator in COMBINATIONS:
        s = Settings(policy, allocator, 8, 512, 320, num_blocks=80, block_size=16)
        check(Case(skewed64(), s, ConstantStepTime(0.0123)))


@pytest.mark.parametrize("fast_forward", [True, False], ids=["fast-forward", "step-by-step"])
@pytest.mark.parametrize("prefix_caching", [False, True], ids=["plain", "prefixes"])
@pytest.mark.parametrize("tight", [False, True], ids=["roomy", "tight"])
def test_with_speculation(tight, prefix_caching, fast_forward):
    """Any drafts, policy, cache and clients, with preemptions and blocks that are given back: who keeps and gives back
    how many tokens and blocks in every pass."""

    @run_briefly
    @given(st.data())
    def agrees(data):
        more = {"allocator": "paged"} if tight else {}
        drafts = data.draw(speculations())
        case = data.draw(client_cases(speculation=drafts, tight=tight, prefix_caching=prefix_caching, **more))
        check(case, fast_forward)

    agrees()


@pytest.mark.parametrize("tight", [False, True], ids=["roomy", "tight"])
@pytest.mark.parametrize("policy", ["continuous", "chunked"])
def test_the_compiled_engine_too(policy, tight):
    """The plain case as machine code: the same as the slow engine, and not only as the one it stands in for."""
    pytest.importorskip("numba", reason="numba is not installed: pip install 'simserve[fast]'")
    step_time = RooflineStepTime(load_model_spec("25m"), load_hardware("laptop-cpu"))
    plain = {"allocator": "paged", "preemption": "recompute", "queue_order": "fcfs"}

    @run_briefly
    @given(cases(policy=policy, tight=tight, **plain), st.sampled_from([1, 10, 1000]))
    def agrees(case, faster):
        table = replace(case.table, arrival_ns=case.table.arrival_ns // faster)
        records = run_if_plain(table, build_scheduler(case.settings), step_time, EngineOptions())
        assert records is not None
        assert_all_agree(records, run_reference(Case(table, case.settings, step_time)))

    agrees()
