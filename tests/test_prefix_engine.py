"""Prefix caching in whole runs: figures by hand, what it saves, and what it leaves as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simserve.assemble import assemble
from simserve.errors import ScenarioError
from simserve.kv_cache import PagedAllocator, PrefixCachingAllocator
from simserve.metrics import summarize
from simserve.records import FINISHED, Records
from simserve.request import Request, RequestTable, Sequence
from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from tests.builders import run_engine
from tests.prefixes import content_of
from tests.reference_types import Settings
from tests.run_builders import SCENARIO
from tests.step_times import ConstantStepTime
from tests.strategies import MS, cases, client_cases, table_of

run_briefly = settings(max_examples=60, deadline=None)
ROOMY = Settings("chunked", "paged", 4, 100, 100, num_blocks=100, block_size=4, prefix_caching=True)
TEN_MS = ConstantStepTime(0.01)


def one_by_one(*prompts: tuple[str, int]) -> RequestTable:
    """Requests a second apart: prompts of letters, four tokens each, and some tokens more; answers of one token."""
    n = len(prompts)
    lengths = [4 * len(letters) + more for letters, more in prompts]
    times = [1000 * MS * i for i in range(n)]
    return table_of(times, lengths, [1] * n, content=content_of([letters for letters, _ in prompts], 4))


def everything(records: Records) -> dict[str, object]:
    """All that a run recorded, as plain lists and numbers."""
    requests = records.requests
    found: dict[str, object] = {
        name: getattr(requests, name).tolist() for name in ("status", "arrival_ns", *requests.TIMES, *requests.COUNTS)
    }
    found |= {f"span {name}": column.tolist() for name, column in records.spans.columns().items()}
    found |= {f"slot {name}": column.tolist() for name, column in records.occupancy.columns().items()}
    found |= {f"look-up {name}": column.tolist() for name, column in records.look_ups.columns().items()}
    found |= {name: value for name, value in vars(records).items() if isinstance(value, int | float)}
    return found | {"itl_counts": records.itl_counts.tolist(), "reasons": requests.reject_reason}


@pytest.mark.parametrize("policy", ["chunked", "continuous"])
def test_the_hit_rate_of_a_cache_that_forgets_nothing(policy):
    """By hand: AB is found by the second (8 of 10 tokens) and the third (8 of 12: of AB and C the last token must be
    computed, but C is new anyway); A by the fourth (4 of 9); ABC by the last (12 of 16)."""
    table = one_by_one(("AB", 2), ("AB", 2), ("ABC", 0), ("AX", 1), ("ABCD", 0))
    records = run_engine(table, replace(ROOMY, policy=policy), TEN_MS)
    assert records.requests.num_prefix_hit_tokens.tolist() == [0, 8, 8, 4, 12]
    assert records.requests.num_computed_tokens.tolist() == [10, 2, 4, 5, 4]
    kv_cache = summarize(records)["kv_cache"]
    assert kv_cache["prefix_hit_rate"] == (8 + 8 + 4 + 12) / (10 + 10 + 12 + 9 + 16)
    assert (kv_cache["prefix_hit_tokens"], kv_cache["prefix_evictions"]) == (32, 0)


def test_what_is_kept_but_free_is_weighted_by_time():
    """Ten blocks: AB is computed in 10 ms, and kept free for 990; then A is taken, and B stays free for the 10 ms in
    which the last block, which ends with the last token, is computed again."""
    records = run_engine(one_by_one(("AB", 0), ("AB", 0)), replace(ROOMY, num_blocks=10), TEN_MS)
    kv_cache = summarize(records)["kv_cache"]
    assert kv_cache["mean_cached_free"] == pytest.approx((8 * 990 + 4 * 10) / 1010 / 40)
    assert kv_cache["peak_used"] == 8 / 40


def test_the_preempted_find_what_they_left():
    """Nothing is known of any prompt, so whatever is found was left by who finds it, and no first look-up hits."""
    table = table_of([0] * 4, [16, 15, 14, 13], [20] * 4)
    records = run_engine(table, replace(ROOMY, num_blocks=20), TEN_MS)
    assert records.num_preemptions > 0
    assert records.num_prefix_hit_tokens > 0 == records.num_found_tokens
    without = run_engine(table, replace(ROOMY, num_blocks=20, prefix_caching=False), TEN_MS)
    assert records.num_computed_tokens < without.num_computed_tokens


@run_briefly
@given(cases(prefix_caching=True, tight=True))
def test_what_is_found_is_not_computed(case):
    """INV-5: computed = prompts + emitted - requests + what preemptions threw away - what was found."""
    records = run_engine(case.table, case.settings, case.step_time)
    requests, table = records.requests, case.table
    done = requests.status == FINISHED
    expected = (table.num_prompt_tokens + table.num_output_tokens - 1)[done].sum()
    saved = requests.num_prefix_hit_tokens
    assert records.num_computed_tokens == expected + records.num_recomputed_tokens - records.num_prefix_hit_tokens
    assert requests.num_computed_tokens.sum() == records.num_computed_tokens
    assert saved.sum() == records.num_prefix_hit_tokens
    assert (saved % case.settings.block_size == 0).all()
    assert summarize(records)["abandoned_tokens"] == 0


@pytest.mark.parametrize("tight", [True, False], ids=["tight", "roomy"])
def test_fast_forward_changes_nothing(tight):
    """INV-7: every column, bit for bit, with hits, evictions, preemptions and clients of any kind."""

    @run_briefly
    @given(client_cases(prefix_caching=True, tight=tight))
    def holds(case):
        fast, slow = (
            run_engine(case.table, case.settings, case.step_time, on, clients=case.clients) for on in (True, False)
        )
        assert everything(fast) == everything(slow)

    holds()


@run_briefly
@given(client_cases(prefix_caching=True))
def test_a_cache_that_finds_nothing_is_a_paged_cache(case):
    """Where nobody begins alike and nobody comes back, all is as it was, but for what is kept free and evicted."""
    table = replace(case.table, content=None)
    on = run_engine(table, case.settings, case.step_time, clients=case.clients)
    assume(on.num_prefix_hit_tokens == 0)
    off = run_engine(table, replace(case.settings, prefix_caching=False), case.step_time, clients=case.clients)
    kept = {"span kv_cached_free_begin", "span kv_cached_free_end", "num_prefix_evictions"}
    same = everything(on), everything(off)
    kept |= {name for name in same[0] if name.startswith("look-up")}
    assert {k: v for k, v in same[0].items() if k not in kept} == {k: v for k, v in same[1].items() if k not in kept}


@run_briefly
@given(cases(prefix_caching=True), st.sampled_from(["paged", "contiguous"]), st.sampled_from(["static", "chunked"]))
def test_without_it_nobody_reads_what_prompts_hold(case, allocator, policy):
    """Off, a trace that tells what prompts hold runs as one that does not."""
    s = replace(case.settings, prefix_caching=False, allocator=allocator, policy=policy)
    told, untold = (run_engine(t, s, case.step_time) for t in (case.table, replace(case.table, content=None)))
    assert everything(told) == everything(untold)
    assert told.num_prefix_hit_tokens == told.num_prefix_evictions == 0


# Scenarios --------------------------------------------------------------------------------------------------------


def scenario_with(**cache: object):
    policy = cache.pop("policy", "chunked")
    engine = {**SCENARIO["engine"], "policy": policy}
    engine["kv_cache"] = {"allocator": "paged", "block_size": 16, "num_blocks": 100, **cache}
    return parse_scenario(SCENARIO | {"engine": engine})


@pytest.mark.parametrize(("on", "allocator"), [(True, PrefixCachingAllocator), (False, PagedAllocator)])
def test_a_scenario_switches_it(on, allocator):
    parts = assemble(scenario_with(prefix_caching=on))
    assert type(parts.scheduler.pool.allocator) is allocator
    assert type(assemble(scenario_with()).scheduler.pool.allocator) is PagedAllocator


@pytest.mark.parametrize(("nameless_first", "next_block"), [(True, 2), (False, 3)])
def test_a_scenario_says_which_free_block_is_taken_first(nameless_first, next_block):
    """Of four blocks two hold eight tokens that can be found, the third one that cannot: it is next, or the fourth."""
    scenario = scenario_with(prefix_caching=True, nameless_first=nameless_first, block_size=4, num_blocks=4)
    allocator = assemble(scenario).scheduler.pool.allocator
    seq = Sequence(Request(0, 0, 9, 1, 1))
    allocator.allocate(seq, 9)
    seq.num_computed_tokens = 9
    allocator.free(seq)
    assert allocator.free_blocks()[0] == next_block


def test_a_scenario_with_unknown_prompts_hits_nothing():
    variants = simulate(scenario_with(prefix_caching=True, block_size=2)).variants
    kv_cache = next(iter(variants.values())).summary["kv_cache"]
    assert kv_cache["prefix_hit_rate"] == 0
    assert kv_cache["mean_cached_free"] > 0


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"preemption": "swap", "swap": {"space": "1GiB", "bandwidth_bytes_per_s": 1e9}}, "preemption: recompute only"),
        ({"policy": "static"}, "continuous or chunked only"),
        ({"allocator": "contiguous"}, "prefix_caching"),
        ({"prefix_caching": False, "nameless_first": True}, "prefix_caching: true only"),
    ],
)
def test_what_it_does_not_go_with_is_refused_in_a_sentence(keys, words):
    with pytest.raises(ScenarioError, match=words) as error:
        scenario_with(**{"prefix_caching": True, **keys})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("block_size", "hits"), [(1, 12), (3, 12), (4, 12), (5, 10), (6, 12), (7, 7), (8, 8), (13, 0)])
def test_blocks_of_any_size_are_found_as_far_as_the_trace_tells(block_size, hits):
    """Two prompts with two content blocks of 6 tokens and 9 tokens of their own: as many whole blocks of the cache as
    lie in the 12."""
    table = replace(table_of([0, 0], [21, 21], [1, 1]), content=content_of(["AB", "AB"], 6))
    records = run_engine(table, replace(ROOMY, block_size=block_size), TEN_MS)
    assert records.requests.num_prefix_hit_tokens.tolist() == [0, hits]
