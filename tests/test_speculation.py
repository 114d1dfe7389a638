"""Speculation by hand: what passes emit, when, what they hold and give back, who is refused."""

from dataclasses import replace

import pytest

from simserve.kv_cache import PagedAllocator
from simserve.metrics import summarize
from simserve.records import CANCELLED
from simserve.request import Batch
from simserve.speculation.acceptance import Acceptance, uniform
from tests.builders import run_engine
from tests.reference_types import Settings
from tests.speculation_builders import constant_pass_time, run_speculating, speculating
from tests.step_times import TokenStepTime
from tests.strategies import MS, plan_of, table_of
from tests.watched import WatchedScheduler

ROOMY = Settings("continuous", "paged", 4, 256, 256, num_blocks=256, block_size=4)
CHUNKED = replace(ROOMY, policy="chunked")
BOTH = pytest.mark.parametrize("settings", [ROOMY, CHUNKED], ids=["continuous", "chunked"])


def always(num_drafts: int) -> Acceptance:
    return Acceptance((1.0,) * num_drafts, seed=0)


def never(num_drafts: int) -> Acceptance:
    return Acceptance((0.0,) * num_drafts, seed=0)


@BOTH
def test_tokens_of_a_pass_come_together(settings):
    """P 10, 10 answer tokens, 2 drafts always right: one by the prefill, then three passes of three, each the target's
    10 ms and two draft steps of 1 ms; gaps of 12, 0, 0 ms three times. The prefill is one step of each model."""
    records = run_speculating(table_of([0], [10], [10]), settings, always(2), constant_pass_time(0.01, 0.1))
    requests = records.requests
    assert requests.first_token_ns[0] == 11 * MS
    assert requests.last_token_ns[0] == requests.end_ns[0] == (11 + 3 * 12) * MS
    summary = summarize(records)
    assert summary["itl_s"]["mean"] == pytest.approx(0.036 / 9)
    assert summary["itl_s"]["p50"] == 0
    assert summary["itl_s"]["max"] == pytest.approx(0.012)
    assert records.itl_counts.sum() == 9
    assert records.itl_counts[0] == 6
    assert records.num_steps == 4


@BOTH
def test_what_comes_too_late_is_thrown_away(settings):
    """8 answer tokens, 4 drafts always right: 1, then 5, then 2 of the 5 that the last pass gives. Computed: 10 for the
    prompt, 5 in each pass; kept: all known tokens but the last, 17; rolled back 3 (and counted as accepted)."""
    records = run_speculating(table_of([0], [10], [8]), settings, always(4))
    summary = summarize(records)
    assert summary["speculation"] == {
        "num_passes": 2,
        "drafted_tokens": 8,
        "accepted_tokens": 8,
        "rejected_tokens": 3,
        "acceptance_rate": 1.0,
        "tokens_per_pass": 3.5,
    }
    assert records.num_computed_tokens == 20
    assert records.requests.num_computed_tokens[0] == 17
    assert records.requests.num_emitted_tokens[0] == 8


@BOTH
def test_useless_drafts_only_cost(settings):
    """α 0: a pass per token as without speculation, and all drafts are rolled back."""
    records = run_speculating(table_of([0], [10], [8]), settings, never(4))
    assert records.num_passes == 7
    assert records.num_rejected_tokens == 28
    assert summarize(records)["speculation"]["tokens_per_pass"] == 1


@BOTH
def test_an_answer_of_one_token_needs_no_pass(settings):
    """The prefill gives it."""
    records = run_speculating(table_of([0], [10], [1]), settings, always(4))
    assert records.num_passes == 0
    assert summarize(records)["speculation"]["tokens_per_pass"] == 0
    assert records.requests.end_ns[0] == records.requests.first_token_ns[0]


def test_without_speculation_there_is_nothing_to_tell():
    """The summary's object is null."""
    assert summarize(run_engine(table_of([0], [10], [5]), ROOMY))["speculation"] is None


@BOTH
def test_everyone_gets_on_by_himself(settings):
    """Two at once, α 0.5: what each accepts is what its own numbers say, pass by pass."""
    acceptance, outputs = Acceptance((0.5, 0.5), seed=5), [12, 30]
    records = run_speculating(table_of([0, 0], [4, 4], outputs), settings, acceptance)
    passes = []
    for request_id, wanted in enumerate(outputs):
        done, count = 1, 0
        while done < wanted:
            first, second = (uniform(5, request_id, done + i) < 0.5 for i in (0, 1))
            done, count = done + 1 + first + (first and second), count + 1
        passes.append(count)
    assert records.num_passes == sum(passes)
    decode_steps = (records.requests.last_token_ns - records.requests.first_token_ns) / (10 * MS)
    assert decode_steps.tolist() == passes


def held_and_free(settings, table, acceptance):
    """Blocks that request 0 holds at each decision, and the batch decided."""
    watched, held = WatchedScheduler(speculating(settings, acceptance)), []
    allocator = watched.pool.allocator
    assert isinstance(allocator, PagedAllocator)
    schedule = watched.schedule

    def look(now_ns, more_coming):
        before = {i: len(blocks) for i, blocks in watched.held_now().items()}
        decision = schedule(now_ns, more_coming)
        if isinstance(decision, Batch):
            held.append((before.get(0, 0), len(watched.held_now().get(0, ()))))
        return decision

    watched.schedule = look
    records = run_speculating(table, settings, acceptance, scheduler=watched)
    watched.assert_memory_adds_up()
    return held, watched.batches, records


@BOTH
def test_blocks_for_all_drafts_before_a_pass_and_for_what_stays_after(settings):
    """Blocks of 4, P 7, 4 drafts never right: before pass k (from 0) 7 + k are computed, and 7 + k + 5 need blocks;
    after it those of 8 + k are left. The answer may have 6 tokens, so room ends at 13: four blocks, not five."""
    held, batches, _ = held_and_free(settings, table_of([0], [7], [6], [6]), never(4))
    blocks = [-(-tokens // 4) for tokens in (7, 7, 8, 9, 10, 11)]
    looked = [2, *(-(-min(7 + k + 5, 13) // 4) for k in range(5))]
    assert held == [(0, looked[0]), *zip(blocks[1:], looked[1:], strict=True)]
    assert [batch.tokens_per_decode for batch in batches] == [5] * 6
    assert [batch.num_batched_tokens for batch in batches] == [7] + [5] * 5


def test_a_prefill_of_others_holds_no_drafts():
    """Continuous: while somebody is prefilled, those who decode hold blocks for what is computed, and no more."""
    table = table_of([0, 15 * MS], [7, 20], [20, 2])
    held, batches, _ = held_and_free(ROOMY, table, never(4))
    stalled = next(i for i, batch in enumerate(batches) if i and batch.chunks)
    assert held[stalled] == (-(-8 // 4), -(-8 // 4))


def test_chunks_share_the_budget_with_drafts():
    """Chunked, 12 tokens per step, 3 drafts: a decode takes 4, so a prompt of 20 comes in chunks of 8, 8 and 4."""
    settings = replace(CHUNKED, max_num_seqs=3, max_num_batched_tokens=12)
    watched = WatchedScheduler(speculating(settings, never(3)))
    run_speculating(table_of([0, 5 * MS], [4, 20], [20, 2]), settings, never(3), scheduler=watched)
    mixed = [batch for batch in watched.batches if batch.chunks and batch.num_decodes]
    assert [batch.chunks[0].num_new_tokens for batch in mixed] == [8, 8, 4]
    assert [batch.num_batched_tokens for batch in mixed] == [12, 12, 8]


def test_the_last_admitted_is_preempted_for_anothers_drafts():
    """12 blocks of one token, prompts of 4, passes of 5: 4 + 5 twice are 18 > 12, so the second is out before the first
    pass and computes again later; both finish."""
    settings = replace(ROOMY, num_blocks=12, block_size=1, max_num_seqs=2)
    records = run_speculating(table_of([0, 0], [4, 4], [4, 4], [9, 9]), settings, always(4))
    assert records.num_preemptions == 1
    assert records.requests.num_preemptions.tolist() == [0, 1]
    assert records.requests.num_recomputed_tokens.tolist() == [0, 4]
    assert records.requests.num_emitted_tokens.tolist() == [4, 4]


@pytest.mark.parametrize(("num_blocks", "declared", "served"), [(14, 6, True), (13, 20, False), (17, 20, True)])
def test_who_is_refused_for_its_drafts(num_blocks, declared, served):
    """P 8, 6 tokens, blocks of one, 3 drafts: 14 + 3 must fit, or 14 if the client declared no more than 6."""
    settings = replace(ROOMY, num_blocks=num_blocks, block_size=1)
    records = run_speculating(table_of([0], [8], [6], [declared]), settings, never(3))
    assert (records.requests.num_emitted_tokens[0] == 6) == served
    if not served:
        reason = "prompt + output of 14 tokens"
        assert records.requests.reject_reason[0].startswith(reason)
        at_16 = run_speculating(table_of([0], [8], [6], [20]), replace(settings, num_blocks=16), never(3))
        assert "and 3 drafts need 17 blocks of 1" in at_16.requests.reject_reason[0]


def test_a_contiguous_range_needs_no_more():
    """An exact range (oracle): drafts beyond it are written nowhere, and the answer comes all the same."""
    settings = replace(ROOMY, allocator="contiguous", reserve="oracle", num_blocks=5, max_num_seqs=1)
    records = run_speculating(table_of([0], [10], [10]), settings, always(8))
    assert records.requests.num_emitted_tokens[0] == 10
    assert summarize(records)["kv_cache"]["peak_used"] <= 1


def test_step_times_see_all_tokens_of_a_pass():
    """A server whose work is tokens: two sequences of 3 drafts are steps of 8 tokens."""
    records = run_speculating(table_of([0, 0], [5, 5], [9, 9]), ROOMY, always(3), TokenStepTime(0.001))
    assert records.requests.first_token_ns.tolist() == [10 * MS] * 2
    assert records.requests.last_token_ns.tolist() == [(10 + 2 * 8) * MS] * 2


def test_who_leaves_during_a_pass_emits_its_tokens_for_nobody():
    """The pass under way ends with its tokens computed; then slot and blocks are free."""
    plan = plan_of(cancel_after_ns=[25 * MS])
    records = run_speculating(table_of([0], [5], [50]), ROOMY, always(3), clients=plan)
    assert records.requests.num_emitted_tokens[0] == 1 + 2 * 4  # at 10, 20 and 30 ms
    assert records.num_passes == 2
    assert records.requests.status.tolist() == [CANCELLED]
