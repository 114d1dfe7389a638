"""What prompts share: interned lists against a dict of whole prefixes, and content that goes where its rows go."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.kv_cache.identities import names_of
from simserve.request import Content, Ranges, RequestTable
from simserve.scenario import ResampleConfig, TraceWorkload
from simserve.workload import build_workload
from simserve.workload.content import (
    Lists,
    blocks_of,
    interned,
    led_by,
    num_blocks,
    ranges_of,
    repeated_tokens,
    set_apart,
    taken,
)
from tests.prefixes import ids_of

briefly = settings(max_examples=40)
LISTS = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=12)  # few values: many common beginnings


def as_bytes(lists: list[list[int]], num_bytes: int = 8) -> list[bytes]:
    return [np.array(values, f"<i{num_bytes}").tobytes() for values in lists]


def chains(content: Content) -> list[list[int]]:
    return [list(content[i].ids) for i in range(len(content.offsets) - 1)]


def by_dict(lists: list[list[int]], per_node: int = 1) -> list[list[int]]:
    """The definition: a number per distinct beginning of whole nodes, by first appearance."""
    numbers: dict[tuple[int, ...], int] = {}
    ends = [range(per_node, len(values) + 1, per_node) for values in lists]
    return [[numbers.setdefault(tuple(v[:e]), len(numbers)) for e in each] for v, each in zip(lists, ends, strict=True)]


@given(LISTS, st.sampled_from([1, 2, 3]), st.sampled_from([4, 8]))
def test_ids_are_equal_exactly_where_the_lists_are(lists: list[list[int]], per_node: int, num_bytes: int) -> None:
    """Law: same id at an index if and only if equal from the start to there; dense, from 0, by first appearance."""
    nodes = interned(Lists(as_bytes(lists, num_bytes), num_bytes, per_node))
    found = [nodes.ids[a:b].tolist() for a, b in zip(nodes.offsets[:-1], nodes.offsets[1:], strict=True)]
    assert found == by_dict(lists, per_node)


@given(LISTS)
def test_the_share_seen_before_is_what_an_infinite_cache_finds(lists: list[list[int]]) -> None:
    """One set of beginnings, filled as the prompts come: hits over look-ups."""
    seen: set[tuple[int, ...]] = set()
    hits = looked_up = 0
    for values in lists:
        beginnings = [tuple(values[: i + 1]) for i in range(len(values))]
        hits += sum(each in seen for each in beginnings)
        looked_up += len(beginnings)
        seen.update(beginnings)
    share = interned(Lists(as_bytes(lists), 8)).seen_before
    assert np.isnan(share) if not looked_up else share == pytest.approx(hits / looked_up)


def prompts_with_lists(
    draw: st.DrawFn, lists: list[list[int]], block_tokens: int
) -> tuple[list[list[int]], list[int], Content]:
    """Each prompt ends anywhere in its last listed block, or in the block after it."""
    cuts = st.integers(-block_tokens + 1, block_tokens - 1)
    shorter = draw(st.lists(st.one_of(st.just(-1), st.just(0), cuts), min_size=len(lists), max_size=len(lists)))
    prompts = [max(block_tokens * len(values) + cut, 1) for values, cut in zip(lists, shorter, strict=True)]
    nodes = interned(Lists(as_bytes(lists), 8))
    return lists, prompts, blocks_of(nodes, np.array(prompts, np.int64), block_tokens)


known_prompts = st.composite(prompts_with_lists)


def common_tokens(a: tuple[list[int], int], b: tuple[list[int], int], block_tokens: int) -> int:
    """By definition, from (ids, prompt tokens): tokens of the whole blocks whose ids are equal from the start; and of
    the last, short one where that is equal too and ends both prompts at the same token."""
    num_alike = 0
    for x, y in zip(a[0], b[0], strict=False):
        if x != y:
            break
        num_alike += 1
    whole = min(num_alike, a[1] // block_tokens, b[1] // block_tokens)
    ends_both = num_alike > whole and a[1] == b[1]
    return min(a[1], num_alike * block_tokens) if ends_both else whole * block_tokens


@briefly
@given(LISTS.flatmap(lambda lists: known_prompts(lists, 10)), st.integers(1, 25))
def test_short_last_blocks_are_common_where_both_prompts_end(
    known: tuple[list[list[int]], list[int], Content], block_size: int
) -> None:
    """Law: two prompts' blocks, of whatever size a cache has, have one name as far as their tokens are known to be
    equal, and no further. Content has ids from 0 by first appearance."""
    lists, prompts, content = known
    assert len(content) == len(lists)
    assert content.ids.dtype == content.offsets.dtype == np.int64
    assert list(dict.fromkeys(content.ids.tolist())) == list(range(len(set(content.ids.tolist()))))
    names = [names_of(i, content[i], block_size).of_content.tolist() for i in range(len(content))]
    for i, a in enumerate(zip(lists, prompts, strict=True)):
        assert content[i].num_tokens == common_tokens(a, a, 10) <= a[1]
        for j, b in enumerate(zip(lists, prompts, strict=True)):
            together = zip(names[i], names[j], strict=False)
            num_alike = next((k for k, (x, y) in enumerate(together) if x != y), min(len(names[i]), len(names[j])))
            assert num_alike == common_tokens(a, b, 10) // block_size
            assert not set(names[i][num_alike:]) & set(names[j][num_alike:])


@briefly
@given(LISTS.filter(len).flatmap(lambda lists: known_prompts(lists, 16)), st.data())
def test_rows_may_be_taken_in_any_order_and_more_than_once(
    known: tuple[list[list[int]], list[int], Content], data: st.DataObject
) -> None:
    """Law: row i of the result is row rows[i] of what it was taken from; of ranges too."""
    lists, prompts, content = known
    rows = np.array(data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=20)), np.int64)
    got = taken(content, rows)
    assert [(list(c.ids), *c[1:]) for c in map(got.__getitem__, range(len(got)))] == [
        (list(content[i].ids), *content[i][1:]) for i in rows.tolist()
    ]
    ranges = ranges_of(np.array([len(values) for values in lists]), np.array(prompts))
    assert [taken(ranges, rows)[i] for i in range(len(rows))] == [ranges[i] for i in rows.tolist()]


@briefly
@given(LISTS.filter(len).flatmap(lambda lists: known_prompts(lists, 4)))
def test_the_infinite_cache_bound_counts_what_is_known_and_never_the_last_token(
    known: tuple[list[list[int]], list[int], Content],
) -> None:
    """Against every earlier prompt, one by one: hits stop before the token that must be computed."""
    lists, prompts, content = known
    ones = np.ones(len(lists), np.int64)
    table = RequestTable(0 * ones, np.array(prompts), ones, ones, 0 * ones, content)
    expected, before = 0, []
    for each in zip(lists, prompts, strict=True):
        expected += min(max((common_tokens(each, other, 4) for other in before), default=0), each[1] - 1)
        before.append(each)
    assert repeated_tokens(table) == (expected, sum(prompts))


ROWS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=12)


@briefly
@given(ROWS, st.integers(1, 9))
def test_ranges_begin_alike_within_a_group_and_are_apart_otherwise(
    rows: list[tuple[int, int, int]], block_size: int
) -> None:
    """Law: rows of (group, known tokens, prompt tokens) have the blocks in common that both are known for, if of one
    group. The bound is the longest earlier one of the group; blocks of a range are counted as tokens."""
    group, known, prompts = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    ranges, ones = ranges_of(group, known), np.ones(len(rows), np.int64)
    names = [set(names_of(i, ranges[i], block_size).of_content.tolist()) for i in range(len(rows))]
    expected = 0
    for i, (mine, num_tokens, num_prompt) in enumerate(rows):
        common = [min(num_tokens, other) if mine == its else 0 for its, other, _ in rows]
        assert [len(names[i] & each) for each in names] == [tokens // block_size for tokens in common]
        expected += min(max(common[:i], default=0), num_prompt - 1)
    assert repeated_tokens(RequestTable(0 * ones, prompts, ones, ones, 0 * ones, ranges)) == (expected, prompts.sum())
    assert num_blocks(ranges) == (known.sum(), sum(known[group == each].max() for each in set(group.tolist())))


LEADS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=7, max_size=7)


@briefly
@given(ROWS, LEADS, st.integers(1, 9), st.data())
def test_groups_may_begin_as_others_do(
    rows: list[tuple[int, int, int]], leads: list[tuple[int, int]], block_size: int, data: st.DataObject
) -> None:
    """Law: rows of two groups that one lead begins have in common what all four of the two rows and the two leads know;
    those of one group what both know, as ever. The bound, counts, copies and taken rows say the same."""
    group, known, prompts = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    lead = np.array([leads[each] for each in group], np.int64).reshape(-1, 2)
    ranges, ones = led_by(ranges_of(group, known), ranges_of(lead[:, 0], lead[:, 1])), np.ones(len(rows), np.int64)

    def common(i: int, j: int) -> int:
        shorter = min(rows[i][1], rows[j][1])
        if rows[i][0] == rows[j][0]:
            return shorter
        (mine, my_tokens), (other, its_tokens) = leads[rows[i][0]], leads[rows[j][0]]
        return min(shorter, my_tokens, its_tokens) if mine == other else 0

    n = len(rows)
    names = [set(names_of(i, ranges[i], block_size).of_content.tolist()) for i in range(n)]
    for i, j in itertools.product(range(n), repeat=2):
        assert len(names[i] & names[j]) == common(i, j) // block_size
    expected = sum(min(max((common(i, j) for j in range(i)), default=0), rows[i][2] - 1) for i in range(n))
    assert repeated_tokens(RequestTable(0 * ones, prompts, ones, ones, 0 * ones, ranges)) == (expected, prompts.sum())
    assert num_blocks(ranges) == (known.sum(), len({token for i in range(n) for token in ids_of(ranges[i])}))
    some = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=9)), np.int64)
    assert [taken(ranges, some)[i] for i in range(len(some))] == [ranges[i] for i in some.tolist()]
    copies = set_apart(taken(ranges, np.repeat(np.arange(n), 2)), np.tile([0, 1], n))
    sets = [set(ids_of(copies[i])) for i in range(2 * n)]
    for i, j in itertools.product(range(2 * n), repeat=2):
        assert len(sets[i] & sets[j]) == (common(i // 2, j // 2) if i % 2 == j % 2 else 0)


@briefly
@given(LISTS.filter(len).flatmap(lambda lists: known_prompts(lists, 4)), st.data())
def test_copies_are_set_apart(known: tuple[list[list[int]], list[int], Content], data: st.DataObject) -> None:
    """Rows of one copy have in common what they had, rows of two copies nothing; of blocks as of ranges."""
    lists, prompts, content = known
    copy = data.draw(st.lists(st.integers(0, 2), min_size=len(lists), max_size=len(lists)))
    for before in (content, ranges_of(np.array([len(values) for values in lists]), np.array(prompts))):
        after = set_apart(before, np.array(copy, np.int64))
        old, new = map(blocks_of_two, (before, after))
        for i, j in itertools.product(range(len(copy)), repeat=2):
            assert len(new[i] & new[j]) == (len(old[i] & old[j]) if copy[i] == copy[j] else 0)


def blocks_of_two(content: Content | Ranges) -> list[set[int]]:
    return [set(names_of(0, content[i], 2).of_content.tolist()) for i in range(len(content))]


@briefly
@given(LISTS.flatmap(lambda lists: known_prompts(lists, 4)))
def test_blocks_are_counted_whole(known: tuple[list[list[int]], list[int], Content]) -> None:
    """A short last block is none of them."""
    lists, prompts, content = known
    whole = [each for values, n in zip(lists, prompts, strict=True) for each in beginnings(values[: n // 4])]
    assert num_blocks(content) == (len(whole), len(set(whole)))


def beginnings(values: list[int]) -> list[tuple[int, ...]]:
    return [tuple(values[: k + 1]) for k in range(len(values))]


def test_a_workload_without_content_repeats_nothing() -> None:
    """Unknown is not shared."""
    ones = np.ones(3, np.int64)
    assert repeated_tokens(RequestTable(0 * ones, 7 * ones, ones, ones, ones)) == (0, 21)


def write(folder: Path, num_rows: int = 40) -> list[dict[str, Any]]:
    """The folder's t.jsonl: prompts of 3 blocks with few distinct beginnings; row i alone has i + 1 output tokens."""
    rng = random.Random(0)
    rows = [
        {
            "timestamp": 10 * i,
            "input_length": 1600,
            "output_length": i + 1,
            "hash_ids": [rng.randrange(4) for _ in "abcd"],
        }
        for i in range(num_rows)
    ]
    (folder / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"limit": 7},
        {"rate_scale": 2.0},
        {"concurrency": 3},
        {"resample": ResampleConfig(block_requests=5)},
        {"limit": 11, "resample": ResampleConfig(block_requests=2), "rate_scale": 0.5},
        {"resample": ResampleConfig(block_requests=6), "concurrency": 2},
    ],
    ids=str,
)
def test_rows_keep_their_content_whatever_the_workload_does(tmp_path: Path, options: dict[str, Any]) -> None:
    """Limit, scale, closed loop and resampling: two requests share blocks if and only if their rows do."""
    rows = write(tmp_path)
    table = build_workload(TraceWorkload(trace="t.jsonl", **options), 3, tmp_path).table
    assert table.content is not None
    drawn = [rows[outputs - 1]["hash_ids"][:3] for outputs in table.num_output_tokens.tolist()]
    found = [(tuple(chain), tuple(ids)) for chain, ids in zip(chains(table.content), drawn, strict=True)]
    for length in (1, 2, 3):
        pairs = {(chain[:length], ids[:length]) for chain, ids in found}
        assert len(pairs) == len({chain for chain, _ in pairs}) == len({ids for _, ids in pairs})
    assert [list(table[i].content.ids) for i in range(len(table))] == chains(table.content)  # type: ignore[union-attr]


def test_the_note_is_of_the_requests_that_are_replayed(tmp_path: Path) -> None:
    """Equal prompts of 3 whole blocks and a rest: of 2 requests one finds all but the last of its 1,600 tokens, of 4
    three do."""
    row = {"timestamp": 0, "input_length": 1600, "output_length": 1, "hash_ids": [1, 2, 3, 4]}
    (tmp_path / "t.jsonl").write_text("\n".join([json.dumps(row)] * 4))
    for limit, share in ((2, 1599 / 3200), (None, 3 * 1599 / 6400)):
        notes = build_workload(TraceWorkload(trace="t.jsonl", limit=limit), 0, tmp_path).notes
        said = f"{100 * share:.1f} % of the prompt tokens would be hits of an infinite prefix cache"
        assert notes[-1] == f"t.jsonl: {said}"


def test_resampling_says_that_it_repeats_prompts(tmp_path: Path) -> None:
    """Drawing with replacement makes requests meet their own doubles, more hits than the trace has: a note says so."""
    write(tmp_path)
    drawn = TraceWorkload(trace="t.jsonl", resample=ResampleConfig(block_requests=5))
    note = "t.jsonl: drawn anew in blocks of 5 consecutive requests; a request drawn again repeats its whole prompt"
    assert note in build_workload(drawn, 0, tmp_path).notes
