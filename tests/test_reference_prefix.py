"""Laws of the prefix cache that hold whoever keeps it, on the plain lists of the reference engine."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import replace

from hypothesis import assume, given, settings

from simserve.request import Request
from tests.prefixes import ids_of
from tests.reference import Reference
from tests.reference_types import Step
from tests.references import run_reference
from tests.strategies import Case, cases, client_cases

run_briefly = settings(max_examples=150, deadline=None)


def run(case: Case) -> Reference:
    return run_reference(case)


def tokens_of(request: Request, begin: int, end: int) -> tuple[Hashable, ...]:
    """What a request has at these positions, token by token: a place in known content, or something of its own."""
    chain, found = request.content, []
    ids = [] if chain is None else ids_of(chain)
    for position in range(begin, end):
        index = position // chain.block_tokens if chain is not None else 0
        known = chain is not None and position < request.num_prompt_tokens and index < len(ids)
        found.append((ids[index] if known else ("of request", request.id), position))
    return tuple(found)


def writes(case: Case, step: Step) -> dict[tuple[int, int], Hashable]:
    """What the step puts into the cells (block, place) of the cache."""
    size, written = case.settings.block_size, {}
    for work in step.works:
        positions = range(work.num_context, work.num_context + work.num_new)
        tokens = tokens_of(case.table[work.seq_id], positions.start, positions.stop)
        for position, token in zip(positions, tokens, strict=True):
            written[step.tables[work.seq_id][position // size], position % size] = token
    return written


@run_briefly
@given(client_cases(prefix_caching=True))
def test_everybody_reads_what_his_own_tokens_wrote(case):
    """Of each sequence of each step, all tokens before those it computes are in the cells of its table, written by
    itself, or by whoever had the same tokens up to there, before or in this very step."""
    size, cells = case.settings.block_size, {}
    for step in run(case).steps:
        cells |= writes(case, step)
        for work in step.works:
            table = step.tables[work.seq_id]
            read = tuple(cells[table[position // size], position % size] for position in range(work.num_context))
            assert read == tokens_of(case.table[work.seq_id], 0, work.num_context)


@run_briefly
@given(client_cases(prefix_caching=True))
def test_blocks_are_free_or_held_and_shared_where_content_is(case):
    """INV-2: at every step free + held = total; two sequences share blocks from the start of both, or none; used cells
    are no more than held ones; at the end all are free, whether or not they can be hit."""
    reference, s = run(case), case.settings
    for step in reference.steps:
        held = {block for table in step.tables.values() for block in table}
        assert len(held) + step.free == s.usable_blocks
        assert step.reserved_tokens == len(held) * s.block_size
        assert step.used_tokens + step.num_prefill_tokens + step.num_decodes <= step.reserved_tokens
        assert sorted([*held, *step.queue]) == list(range(s.null_blocks, s.num_blocks))
        assert step.cached_free <= step.free == len(step.queue)
        for mine, other in itertools.combinations(step.tables.values(), 2):
            shared = set(mine) & set(other)
            assert set(mine[: len(shared)]) == shared == set(other[: len(shared)])
    paged = reference.paged
    assert not paged.tables
    assert sorted(block.number for block in paged.queue) == sorted(block.number for block in paged.blocks)
    assert not any(block.num_holders for block in paged.blocks)


@run_briefly
@given(client_cases(prefix_caching=True))
def test_computed_tokens_are_those_of_the_caches_and_of_preemptions_less_the_hits(case):
    """INV-5: computed = in the caches at the end + thrown away by preemptions − hit; a hit leaves the last token."""
    reference = run(case)
    computed = sum(work.num_new for step in reference.steps for work in step.works)
    hits = sum(seq.num_prefix_hit_tokens for seq in reference.seqs)
    assert computed == sum(seq.computed + seq.num_recomputed_tokens for seq in reference.seqs) - hits
    for seq in reference.seqs:
        assert len(seq.lookups) in (seq.num_preemptions, seq.num_preemptions + 1)
        assert all(hit < known and hit % case.settings.block_size == 0 for known, hit in seq.lookups)


@run_briefly
@given(cases(prefix_caching=True))
def test_a_cache_without_end_hits_what_a_set_of_beginnings_says(case):
    """With room for everything, each request hits the longest run of whole blocks, the last token left out, that some
    prompt before it begins with: first come, first served, so all before it have been scheduled."""
    s = replace(case.settings, num_blocks=1000, queue_order="fcfs", max_model_len=1000, watermark=0.0)
    case = replace(case, settings=replace(s, max_num_batched_tokens=s.max_num_batched_tokens + 80))
    beginnings: set[Hashable] = set()
    for seq in run(case).seqs:
        request, size = seq.request, s.block_size
        ends = range(size, request.num_prompt_tokens, size)
        hit = max((end for end in ends if tokens_of(request, 0, end) in beginnings), default=0)
        assert seq.lookups == [(request.num_prompt_tokens, hit)]
        beginnings |= {tokens_of(request, 0, end) for end in range(size, request.num_prompt_tokens + 1, size)}


@run_briefly
@given(client_cases(prefix_caching=True))
def test_caching_changes_no_answer(case):
    """Whoever is answered without a prefix cache is answered with it, with as many tokens, if no clock decides."""
    assume(case.settings.max_queued_requests is None)
    clients = replace(case.clients, timeout_ns=None, ttft_timeout_ns=None, cancel_after_ns=None)
    case = replace(case, clients=clients)
    off = run(replace(case, settings=replace(case.settings, prefix_caching=False)))
    on = run(case)
    answers = [[(ask.status, len(ask.attempts[-1].token_ns)) for ask in engine.asks] for engine in (on, off)]
    assert answers[0] == answers[1]
    assert not any(seq.num_prefix_hit_tokens for seq in off.seqs)


@run_briefly
@given(cases(prefix_caching=True))
def test_caching_never_computes_more(case):
    """Where nobody is preempted, what is computed with the cache is what is computed without it, less the hits. (Under
    pressure nothing of the kind holds: who is admitted earlier may be preempted.)"""
    case = replace(case, settings=replace(case.settings, num_blocks=1000))
    off, on = (run(replace(case, settings=replace(case.settings, prefix_caching=caching))) for caching in (False, True))
    computed = [sum(work.num_new for step in engine.steps for work in step.works) for engine in (off, on)]
    assert computed[1] == computed[0] - sum(seq.num_prefix_hit_tokens for seq in on.seqs)


@run_briefly
@given(client_cases(prefix_caching=True))
def test_prompts_that_have_nothing_in_common_are_served_as_without_a_cache(case):
    """Without content to share, as long as nobody is preempted and nobody comes again, every step is the same."""
    table = replace(case.table, content=None)
    case = replace(case, table=table, clients=replace(case.clients, retry=None))
    on = run(case)
    assume(not any(seq.num_preemptions for seq in on.seqs))
    off = run(replace(case, settings=replace(case.settings, prefix_caching=False)))
    assert [(step.begin_ns, step.end_ns, step.works) for step in on.steps] == [
        (step.begin_ns, step.end_ns, step.works) for step in off.steps
    ]
