"""What prompts share: interned lists against a dict of whole prefixes, and content that goes where its rows go."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.request import Content, RequestTable
from simserve.scenario import ResampleConfig, TraceWorkload
from simserve.workload import build_workload
from simserve.workload.content import Lists, full_blocks, interned, repeated_tokens, taken

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


@given(LISTS, st.data())
def test_partial_last_blocks_are_no_content(lists: list[list[int]], data: st.DataObject) -> None:
    """Blocks of 10 tokens; each prompt ends anywhere in its last listed block, or in the block after it."""
    shorter = data.draw(st.lists(st.integers(-9, 9), min_size=len(lists), max_size=len(lists)))
    prompts = [max(10 * len(values) + cut, 0) for values, cut in zip(lists, shorter, strict=True)]
    content = full_blocks(interned(Lists(as_bytes(lists), 8)), np.array(prompts, np.int64), 10)
    full = [values[: prompt // 10] for values, prompt in zip(lists, prompts, strict=True)]
    assert chains(content) == by_dict(full)
    assert content.ids.dtype == content.offsets.dtype == np.int64


@given(LISTS.filter(len), st.data())
def test_rows_may_be_taken_in_any_order_and_more_than_once(lists: list[list[int]], data: st.DataObject) -> None:
    """Law: row i of the result is row rows[i] of what it was taken from."""
    nodes = interned(Lists(as_bytes(lists), 8))
    content = Content(nodes.ids, nodes.offsets, 16)
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=20))
    assert chains(taken(content, np.array(rows, np.int64))) == [by_dict(lists)[i] for i in rows]


@given(LISTS.filter(len), st.integers(0, 3))
def test_the_infinite_cache_bound_counts_whole_blocks_and_never_the_last_token(
    lists: list[list[int]], tail: int
) -> None:
    """Against a set of beginnings, block by block of 4 tokens: hits stop before the token that must be computed."""
    nodes = interned(Lists(as_bytes(lists), 8))
    prompts = np.array([max(4 * len(values) + tail, 1) for values in lists], np.int64)
    ones = np.ones(len(lists), np.int64)
    table = RequestTable(0 * ones, prompts, ones, ones, 0 * ones, Content(nodes.ids, nodes.offsets, 4))
    seen: set[tuple[int, ...]] = set()
    expected = 0
    for values, prompt in zip(lists, prompts.tolist(), strict=True):
        beginnings = [tuple(values[: i + 1]) for i in range(len(values))]
        expected += min(4 * sum(each in seen for each in beginnings), prompt - 1)
        seen.update(beginnings)
    assert repeated_tokens(table) == (expected, int(prompts.sum()))


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
    """Equal prompts of 3 whole blocks and a rest: of 2 requests one finds 1,536 of its 1,600 tokens, of 4 three do."""
    row = {"timestamp": 0, "input_length": 1600, "output_length": 1, "hash_ids": [1, 2, 3, 4]}
    (tmp_path / "t.jsonl").write_text("\n".join([json.dumps(row)] * 4))
    for limit, share in ((2, 1536 / 3200), (None, 3 * 1536 / 6400)):
        notes = build_workload(TraceWorkload(trace="t.jsonl", limit=limit), 0, tmp_path).notes
        said = f"{100 * share:.1f} % of the prompt tokens would be hits of an infinite prefix cache"
        assert notes[-1] == f"t.jsonl: {said}"


def test_resampling_says_that_it_repeats_prompts(tmp_path: Path) -> None:
    """Drawing with replacement makes requests meet their own doubles, more hits than the trace has: a note says so."""
    write(tmp_path)
    drawn = TraceWorkload(trace="t.jsonl", resample=ResampleConfig(block_requests=5))
    note = "t.jsonl: drawn anew in blocks of 5 consecutive requests; a request drawn again repeats its whole prompt"
    assert note in build_workload(drawn, 0, tmp_path).notes
