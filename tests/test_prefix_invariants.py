"""What a prefix cache may and may not change, on the real engine: laws that hold however it keeps its blocks."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings

from simserve.records import FINISHED, Records
from tests.builders import run_engine
from tests.prefixes import content_of, ids_of
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime
from tests.strategies import MS, Case, cases, client_cases, table_of
from tests.test_invariants import everything

run_briefly = settings(max_examples=100, deadline=None)


def run(case: Case, **changes: object) -> Records:
    s = replace(case.settings, **changes)
    return run_engine(case.table, s, case.step_time, clients=case.clients)


def beginnings(case: Case, i: int) -> list[Hashable]:
    """What identifies each whole block of a prompt: the content up to its end, as far as the trace tells of it."""
    chain, size = case.table.content[i], case.settings.block_size
    ends = range(size, int(case.table.num_prompt_tokens[i]) + 1, size)
    known = [(end, tuple(ids_of(chain)[: -(-end // chain.block_tokens)])) for end in ends]
    return [found for found in known if len(found[1]) * chain.block_tokens >= found[0]]


@run_briefly
@given(cases(prefix_caching=True, queue_order="fcfs"))
def test_a_cache_without_end_hits_what_a_set_of_beginnings_says(case):
    """First come, first served, with room for everything: each request hits the longest run of whole blocks, its last
    token left out, with which some prompt before it begins, too."""
    assume(case.table.content is not None)
    budget = case.settings.max_num_batched_tokens + 80
    records = run(case, num_blocks=10_000, watermark=0.0, max_model_len=1000, max_num_batched_tokens=budget)
    seen: set[Hashable] = set()
    for i in range(len(case.table)):
        mine, hits = beginnings(case, i), 0
        most = (int(case.table.num_prompt_tokens[i]) - 1) // case.settings.block_size
        while hits < min(most, len(mine)) and mine[hits] in seen:
            hits += 1
        assert records.requests.num_prefix_hit_tokens[i] == hits * case.settings.block_size
        seen |= set(mine)
    assert records.num_looked_up_tokens == case.table.num_prompt_tokens.sum()
    assert records.num_found_tokens == records.requests.num_prefix_hit_tokens.sum()
    assert records.num_prefix_evictions == 0


@run_briefly
@given(client_cases(prefix_caching=True, tight=True))
def test_caching_changes_no_answer(case):
    """Whoever stays is answered with as many tokens as without the cache, at every size of it."""
    clients = replace(case.clients, timeout_ns=None, ttft_timeout_ns=None, cancel_after_ns=None)
    case = replace(case, settings=replace(case.settings, max_queued_requests=None), clients=clients)
    on, off = run(case).requests, run(case, prefix_caching=False).requests
    assert (on.status == off.status).all()
    assert (on.num_emitted_tokens == off.num_emitted_tokens).all()
    assert (off.num_prefix_hit_tokens == 0).all()
    done = on.status == FINISHED
    assert (on.num_emitted_tokens[done] == case.table.num_output_tokens[done]).all()


@run_briefly
@given(cases(prefix_caching=True))
def test_caching_never_computes_more(case):
    """Where nobody is preempted, computed with the cache = computed without it − hits. (Under pressure nothing of the
    kind holds: who is admitted earlier may be preempted.)"""
    on, off = run(case, num_blocks=1000), run(case, num_blocks=1000, prefix_caching=False)
    assert on.num_computed_tokens == off.num_computed_tokens - on.num_prefix_hit_tokens


@run_briefly
@given(cases(prefix_caching=True))
def test_without_anything_in_common_and_room_nothing_changes(case):
    """A prefix cache that finds nothing and never has to preempt leaves every record as it would be without it."""
    case = replace(case, table=replace(case.table, content=None))
    on, off = (everything(run(case, num_blocks=1000, prefix_caching=caching)) for caching in (True, False))
    differ = {name for name in on if on[name] != off[name] and not name.startswith("look_ups.")}
    assert differ <= {"spans.kv_cached_free_begin", "spans.kv_cached_free_end"}


def test_a_long_shared_run_is_shared_whatever_the_blocks():
    """Ten requests, one after the other, of 4,096 shared tokens and one of their own: nine hit all that is shared, in
    blocks of 1 to 512 tokens."""
    n, shared = 10, 4096
    for block_tokens in (16, 512):
        content = content_of([[*range(shared // block_tokens)]] * n, block_tokens)
        table = table_of([i * 100 * MS for i in range(n)], [shared + 1] * n, [1] * n, content=content)
        for size in (1, 16, 64, 512):
            s = Settings("chunked", "paged", 4, 8192, 8192, num_blocks=16384 // size, block_size=size)
            requests = run(Case(table, replace(s, prefix_caching=True), ConstantStepTime())).requests
            assert requests.num_prefix_hit_tokens.tolist() == [0, *[shared] * (n - 1)]
            assert np.array_equal(requests.num_computed_tokens, [shared + 1, *[1] * (n - 1)])
