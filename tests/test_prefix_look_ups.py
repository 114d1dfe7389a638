"""What first admissions found, what had been evicted, and what an infinite cache would have found: by hand, by law, and
in summary, timeline and request rows."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from simserve.clients import RetryPolicy
from simserve.kv_cache.history import History
from simserve.kv_cache.identities import Identities, names_of
from simserve.metrics import look_up_columns, summarize, timeline
from simserve.records import FINISHED, Records
from simserve.request import LookUp
from simserve.tasks.measure import measure
from simserve.tasks.warmup import WarmupRule
from simserve.timeline import PREFIX_COUNTS
from tests.benchmarks.regimes import CONVERSATION, SHARING_16, conversation
from tests.builders import run_engine
from tests.prefix_rules import DUPLICATES, EVICTIONS, HITS, ROOMY, PrefixRule, asks, cache_of
from tests.prefixes import content_of
from tests.reference_types import Settings
from tests.shared_data import needs
from tests.step_times import ConstantStepTime
from tests.strategies import MS, Case, cases, client_cases, plan_of, table_of

run_briefly = settings(max_examples=25, deadline=None)


def run(case: Case, **changes: object) -> Records:
    return run_engine(case.table, replace(case.settings, **changes), case.step_time, clients=case.clients)


def look_ups(records: Records) -> list[LookUp]:
    """Each look-up of the run, in its order."""
    columns = records.look_ups.columns()
    return [LookUp(*row) for row in zip(*(columns[name].tolist() for name in LookUp._fields), strict=True)]


# By hand: (known, found, evicted, bound) of each look-up. Of a prompt of n tokens at most (n - 1) // 4 blocks count.
BY_HAND: dict[str, tuple[PrefixRule, list[tuple[int, int, int, int]]]] = {
    "of ABCD the cache still has A and B and lost C; of VWXY again it lost X": (
        EVICTIONS["the tail of what was freed goes first"],
        [(12, 0, 0, 0), (16, 0, 0, 0), (16, 8, 4, 12), (16, 8, 4, 12)],
    ),
    "what was taken for something else is evicted, and what is new is not": (
        EVICTIONS["a block that nobody could hit is taken in its turn"],
        [(4, 0, 0, 0), (5, 0, 0, 0), (4, 0, 0, 0), (5, 0, 4, 4)],
    ),
    "what was found stays, and of two equal blocks the second serves when the first is gone": (
        DUPLICATES["the first of two equal blocks serves, and when it is gone the second"],
        [(8, 0, 0, 0), (8, 4, 0, 4), (8, 0, 0, 0), (9, 8, 0, 8)],
    ),
    "who left in the middle had asked for a block that nobody computed": (
        HITS["who left in the middle leaves hits behind"],
        [(20, 0, 0, 0), (20, 12, 0, 16)],
    ),
    "two of one step: the second finds what the first is about to compute": (
        HITS["two with a common beginning admitted in the same step share it already"],
        [(10, 0, 0, 0), (11, 8, 0, 8)],
    ),
    "a second attempt may find its own, though the trace tells nothing": (
        HITS["a second attempt hits what the first one left, whether or not the trace tells what it is"],
        [(20, 0, 0, 0), (20, 12, 0, 12)],
    ),
    "with content blocks of eight tokens and engine blocks of four too": (
        HITS["or as one, where the last token is in the other"],
        [(8, 0, 0, 0), (8, 4, 0, 4)],
    ),
}


@pytest.mark.parametrize(("hand_made", "expected"), BY_HAND.values(), ids=BY_HAND.keys())
def test_by_hand(hand_made, expected):
    """Found, evicted and bound of every look-up."""
    assert look_ups(run(hand_made.case)) == [LookUp(*row) for row in expected]


def test_what_its_own_first_attempt_left_and_lost_is_evicted():
    """Eight tokens a step and eleven blocks: a client leaves in the fourth step, with 8 blocks of 4 tokens computed;
    until it is served again VWXY takes the three that were never used, and the last of those 8."""
    table = asks(("", 40), ("VWXY", 0), at=[0, 36])
    clients = plan_of(timeout_ns=35 * MS, retry=RetryPolicy(2, 5 * MS, 1.0, 10**12, 0.0, True, True))
    case = Case(table, cache_of(11, max_num_batched_tokens=8), ConstantStepTime(0.01), clients)
    assert look_ups(run(case))[:3] == [LookUp(40, 0, 0, 0), LookUp(16, 0, 0, 0), LookUp(40, 28, 4, 32)]


def test_answers_that_come_back_are_found():
    """The first prompt, AB, is answered with CD; the second is ABCDE and four tokens. Of the answer's last token nobody
    computes anything, so neither D nor E can be found, by whatever cache."""
    table = table_of([0, 1000 * MS], [8, 24], [8, 1], content=content_of(["ABCD", "ABCDE"], 4))
    assert look_ups(run(Case(table, ROOMY, ConstantStepTime(0.01))))[1] == LookUp(24, 12, 0, 12)
    small = Case(replace(table, num_output_tokens=np.array([4, 1])), ROOMY, ConstantStepTime(0.01))
    assert look_ups(run(small))[1] == LookUp(24, 8, 0, 8)


@needs(CONVERSATION)
def test_the_bound_of_a_real_trace():
    """Mooncake's conversations, 16-token blocks of its 512: the bound by plain sets over the file's own lines, in which
    a last block that is not full is the same in prompts of one length."""
    n, seen, bounds = 500, set(), []
    with gzip.open(CONVERSATION, "rt") as file:
        rows = [json.loads(line) for line in itertools.islice(file, n)]
    for row in rows:
        length, ids = row["input_length"], row["hash_ids"]
        blocks = [(k, node, min(length - 512 * k, 512)) for k, node in enumerate(ids)]
        run_of_seen = sum(size for _, _, size in itertools.takewhile(seen.__contains__, blocks))
        seen |= set(blocks)
        bounds.append(min(run_of_seen, length - 1) // 16 * 16)
    records = run_engine(conversation(n), replace(SHARING_16, num_blocks=12_000), ConstantStepTime(0.01))
    assert look_up_columns(records)["num_bound_tokens"].tolist() == bounds
    assert sum(bounds) > records.num_found_tokens > 0


@run_briefly
@given(client_cases(prefix_caching=True, tight=True))
def test_parts_of_a_look_up(case):
    """Whatever clients and caches do: found + evicted ≤ bound < known, in whole blocks; per request they add up to what
    all its attempts looked up; the totals are those of the hit rate."""
    records = run(case)
    size, rows = case.settings.block_size, look_ups(records)
    for row in rows:
        assert row.num_found_tokens + row.num_evicted_tokens <= row.num_bound_tokens < row.num_tokens
        assert not any(tokens % size for tokens in row[1:])
    columns = look_up_columns(records)
    assert columns["num_looked_up_tokens"].sum() == records.num_looked_up_tokens
    assert columns["num_found_tokens"].sum() == records.num_found_tokens
    assert all(len(column) == len(case.table) for column in columns.values())


@run_briefly
@given(cases(prefix_caching=True, tight=True, queue_order="fcfs"))
def test_the_bound_is_what_a_cache_without_end_finds(case):
    """First come, first served: however small the cache, each bound is what the same request finds in one that has room
    for everything and computes every prompt at once."""
    small = run(case)
    assume((small.requests.status == FINISHED).all())
    budget = case.settings.max_num_batched_tokens + 80
    endless = run(case, num_blocks=10_000, watermark=0.0, max_model_len=1000, max_num_batched_tokens=budget)
    bounds = look_up_columns(small)["num_bound_tokens"]
    assert bounds.tolist() == endless.requests.num_prefix_hit_tokens.tolist()
    assert look_up_columns(endless)["num_evicted_tokens"].sum() == 0


def test_the_summary_adds_them_up():
    """Of 60 tokens looked up 16 were found, 8 evicted, and 24 are the bound; nothing was pending. Where somebody left
    in the middle, four tokens were."""
    name = "the tail of what was freed goes first"
    kv_cache = summarize(run(EVICTIONS[name].case))["kv_cache"]
    assert {key: kv_cache[f"prefix_{key}_tokens"] for key in ("looked_up", "found", "evicted", "pending")} == {
        "looked_up": 60,
        "found": 16,
        "evicted": 8,
        "pending": 0,
    }
    assert kv_cache["prefix_hit_bound"] == 24 / 60
    left = summarize(run(HITS["who left in the middle leaves hits behind"].case))["kv_cache"]
    assert left["prefix_pending_tokens"] == 4


def test_a_study_measures_the_rate_of_the_requests_that_it_keeps():
    """Warm-up cut: of the last two requests, 16 tokens each, 8 were found and 12 are the bound; without a prefix cache
    there is no such measure."""
    table = asks(("ABC", 0), ("VWXY", 0), ("ABCD", 0), ("VWXY", 0), at=[0, 10, 20, 30])
    case = Case(table, cache_of(6), ConstantStepTime(0.01))
    measured = measure(run(case), None, WarmupRule(0.5, steady=True))
    assert (measured["prefix_hit_rate"], measured["prefix_hit_bound"]) == (0.5, 0.75)
    assert "prefix_hit_rate" not in measure(run(case, prefix_caching=False), None, WarmupRule(0.0, steady=False))


def test_the_timeline_has_each_look_up_in_its_bin():
    """Four requests of 10 ms one after the other, in four bins: the rate of each, and NaN where nobody is admitted."""
    records = run(EVICTIONS["the tail of what was freed goes first"].case)
    frame = timeline(records, 4)
    assert frame.prefix_hit_rate.tolist() == [0, 0, 0.5, 0.5]
    assert frame.prefix_evicted_tokens.tolist() == [0, 0, 4, 4]
    assert frame.prefix_bound_tokens.tolist() == [0, 0, 12, 12]
    halves = timeline(records, 8)
    assert np.isnan(halves.prefix_hit_rate[1::2]).all()
    assert halves[list(PREFIX_COUNTS)].sum().tolist() == frame[list(PREFIX_COUNTS)].sum().tolist() == [60, 16, 8, 24]


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
def test_without_prefix_caching_nothing_is_looked_up(allocator):
    """No row, zeros per request, no rate in the timeline."""
    s: Settings = replace(ROOMY, prefix_caching=False, allocator=allocator)
    records = run_engine(asks(("AB", 2), ("AB", 3)), s, ConstantStepTime(0.01))
    assert look_ups(records) == []
    assert not any(column.any() for column in look_up_columns(records).values())
    frame = timeline(records, 3)
    assert np.isnan(frame.prefix_hit_rate).all() and not frame[list(PREFIX_COUNTS)].any(axis=None)


def test_what_was_ever_there_stays_so():
    """A third attempt missed what the first one left, although the second one got less far."""
    history, nameless = History(Identities()), names_of(70, None, 4)
    for num_blocks in (5, 3):
        history.enter(nameless, num_blocks)
    assert history.look_up(nameless, 1, 9, 9) == (5, 5)
    assert history.look_up(names_of(71, None, 4), 0, 9, 9) == (0, 0)
