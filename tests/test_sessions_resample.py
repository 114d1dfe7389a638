"""``workload.resample`` of sessions: whole conversations are drawn again, with their turns, waits and starts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.clients.plan import NOBODY
from simserve.errors import ScenarioError
from simserve.kv_cache.identities import names_of
from simserve.scenario import TraceWorkload
from simserve.scenario.prefix_models import SharedPrefix
from simserve.scenario.workload_models import ResampleConfig
from simserve.workload import Workload, build_workload
from tests.test_conversations import lines

HEADER = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s\n"
# Session k of 8 begins k² s after 0 and has 1 + k % 3 turns, k + 1 s apart, of 100 k + 40 t prompt tokens.
TRACE = HEADER + "".join(
    f"{k * k if t == 0 else ''},{100 * (k + 1) + 40 * t},5,{k},{k + 1 if t else ''}\n"
    for k in range(8)
    for t in range(1 + k % 3)
)


def built(folder: Path, seed: int = 0, text: str = TRACE, **workload: Any) -> Workload:
    (folder / "t.csv").write_text(text)
    resample = ResampleConfig(block_requests=4)
    return build_workload(TraceWorkload(trace="t.csv", resample=resample, **workload), seed, folder)


def conversations(workload: Workload) -> list[list[int]]:
    """The rows of each session in order."""
    turns = workload.clients.turns
    assert turns is not None
    found = []
    for opening in np.flatnonzero(~turns.follows).tolist():
        rows = [opening]
        while (turn := int(turns.next_id[rows[-1]])) != NOBODY:
            rows.append(turn)
        found.append(rows)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_whole_sessions_are_drawn(tmp_path: Path, seed: int) -> None:
    """Eight sessions again, each one of the trace's with all of its turns and waits, and as long after the one before
    it as there (the mean gap, 7 s, before the first, where blocks close the circle)."""
    workload = built(tmp_path, seed)
    table, turns = workload.table, workload.clients.turns
    assert turns is not None
    drawn = conversations(workload)
    assert len(drawn) == 8
    names = [int(table.num_prompt_tokens[rows[0]]) // 100 - 1 for rows in drawn]
    for k, rows in zip(names, drawn, strict=True):
        assert table.num_prompt_tokens[rows].tolist() == [100 * (k + 1) + 40 * t for t in range(1 + k % 3)]
        assert turns.wait_ns[rows[1:]].tolist() == [(k + 1) * 10**9] * (k % 3)
    starts_s = table.arrival_ns[[rows[0] for rows in drawn]] // 10**9
    assert np.diff(starts_s).tolist() == [k * k - (k - 1) ** 2 if k else 7 for k in names[1:]]
    assert "t.csv: drawn anew in blocks of whole sessions, about 4 requests" in workload.notes


def test_blocks_are_of_consecutive_sessions(tmp_path: Path) -> None:
    """About 4 requests are 2 of these sessions: each second one follows the one before it in the trace."""
    for seed in range(5):
        table, drawn = built(tmp_path, seed).table, conversations(built(tmp_path, seed))
        names = [int(table.num_prompt_tokens[rows[0]]) // 100 - 1 for rows in drawn]
        assert all(b == (a + 1) % 8 for a, b in zip(names[::2], names[1::2], strict=True))


def test_a_session_drawn_again_is_another_conversation(tmp_path: Path) -> None:
    """Two of one shape have nothing in common; turns begin with their own."""
    workload = built(tmp_path, 3)
    content = workload.table.content
    assert content is not None
    names = [names_of(i, content[i], 5).of_content.tolist() for i in range(len(workload.table))]
    drawn = conversations(workload)
    for rows in drawn:
        for before, turn in pairwise(rows):
            assert names[turn][: len(names[before])] == names[before]
    lasts = [name for rows in drawn for name in names[rows[-1]]]
    assert len(set(lasts)) == len(lasts)
    assert len({int(workload.table.num_prompt_tokens[rows[0]]) for rows in drawn}) < 8  # some were drawn again


def test_a_shared_prefix_stays_shared(tmp_path: Path) -> None:
    """Other conversations of the same shape begin with the same system prompt."""
    workload = built(tmp_path, 3, shared_prefixes=[SharedPrefix(tokens=50, share=1.0)])
    content = workload.table.content
    assert content is not None
    names = [names_of(i, content[i], 5).of_content.tolist() for i in range(len(workload.table))]
    lasts = [names[rows[-1]] for rows in conversations(workload)]
    assert all(last[:10] == lasts[0][:10] for last in lasts)
    own = [name for last in lasts for name in last[10:]]
    assert len(set(own)) == len(own)


def test_ids_say_the_same_again(tmp_path: Path) -> None:
    """Where prompts have ids of their own, who is drawn again repeats them, as requests do, and a note says so."""
    ids = [list(range(32)), list(range(80))]
    (tmp_path / "t.jsonl").write_text(lines((ids[0], 20), (ids[1], 40)) + "\n" + lines(([7] * 64, 3)))
    config = TraceWorkload(trace="t.jsonl", resample=ResampleConfig(block_requests=1))
    seen = set()
    for seed in range(12):
        workload = build_workload(config, seed, tmp_path)
        content = workload.table.content
        assert content is not None
        openings = [rows[0] for rows in conversations(workload)]
        alike = len({tuple(content[i].ids) for i in openings})
        assert alike == len(set(workload.table.num_prompt_tokens[openings].tolist()))
        seen.add(alike)
        assert any("a request drawn again repeats its whole prompt" in note for note in workload.notes)
    assert seen == {1, 2}


def test_played_sessions_are_drawn_whole(tmp_path: Path) -> None:
    """In a closed loop too, also where turns have times of their own; in an open loop these are requests alone."""
    text = "".join(",".join(line.split(",")[:4]) + "\n" for line in TRACE.splitlines() if not line.startswith(","))
    text = text.replace("wait_s", "") + "".join(f"{k * k + 1},{100 * (k + 1) + 40},5,{k}\n" for k in range(8))
    played = built(tmp_path, 1, text, concurrency=2)
    assert [len(rows) for rows in conversations(played)] == [2] * 8
    assert not played.table.arrival_ns.any()
    alone = built(tmp_path, 1, text)
    assert alone.clients.turns is None and alone.table.session is None and len(alone.table) == 16


def test_blocks_longer_than_the_trace(tmp_path: Path) -> None:
    """One sentence, as for requests."""
    with pytest.raises(ScenarioError, match=r"resample.block_requests: must be ≤ the number of requests \(got 4, and"):
        built(tmp_path, 0, HEADER + "0,1,1,a,\n,1,1,a,1\n")
