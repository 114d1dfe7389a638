"""Sessions of which only lengths, or only the prompts' ids, are known: what turns are taken to begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simserve.kv_cache.identities import names_of
from simserve.request import Content, Ranges
from simserve.scenario import TraceWorkload
from simserve.scenario.prefix_models import SharedPrefix
from simserve.workload import Workload, build_workload

OWN = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s\n"
# 40 + 8 tokens go on in the second turn and 60 + 4 in the fourth; the third is shorter; another session stands beside.
GROWS = OWN + "0,40,8,a,\n,60,4,a,1\n,30,2,a,1\n,32,9,a,1\n0,50,5,b,\n"


def built(folder: Path, text: str, name: str = "t.csv", **workload: Any) -> Workload:
    (folder / name).write_text(text)
    return build_workload(TraceWorkload(trace=name, **workload), 0, folder)


def begins(workload: Workload) -> list[tuple[int, int]]:
    """(first token's number, tokens known) of each request, by prompt length."""
    content = workload.table.content
    assert isinstance(content, Ranges)
    order = workload.table.num_prompt_tokens.argsort().tolist()
    return [(int(content.first[i]), int(content.num_tokens[i])) for i in order]


def note_of(workload: Workload) -> str:
    return "".join(note for note in workload.notes if "sessions_continue" in note)


def test_contexts_that_grow_are_taken_to_go_on(tmp_path: Path) -> None:
    """A turn as long as the prompt and answer before it begins with both, one that is shorter begins anew; said in a
    note, with the key that switches it off."""
    workload = built(tmp_path, GROWS)
    short, after_short, first, other, second = begins(workload)  # 30, 32, 40, 50, 60 tokens
    assert first[0] == second[0] and (first[1], second[1]) == (48, 64)
    assert short[0] == after_short[0]
    assert len({first[0], short[0], other[0]}) == 3
    note = note_of(workload)
    assert note.startswith("t.csv: 2 of 3 later turns are as long as the prompt and answer before them")
    (hits,) = [note for note in workload.notes if "would be hits" in note]
    assert hits.startswith(f"t.csv: {100 * (48 + 31) / 212:.1f} % of the prompt tokens would be hits")


def test_nothing_is_taken_for_granted_where_it_is_switched_off(tmp_path: Path) -> None:
    """Nor where turns have times of their own, unless it is asked for; nor does a trace that tells what is kept need
    it."""
    off = built(tmp_path, GROWS, sessions_continue=False)
    assert off.table.content is None and not note_of(off)
    own_times = "arrival_s,num_prompt_tokens,num_output_tokens,session_id\n0,40,8,a\n1,60,4,a\n"
    assert built(tmp_path, own_times).table.content is None
    assert begins(built(tmp_path, own_times, sessions_continue=True)) == [(0, 48), (0, 64)]
    assert begins(built(tmp_path, own_times, concurrency=1)) == [(0, 48), (0, 64)]  # whose turns wait
    told = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s,kept_tokens\n0,40,8,a,,\n,60,4,a,1,\n"
    assert begins(built(tmp_path, told, sessions_continue=True)) == [(0, 48), (48, 64)]


@pytest.mark.parametrize("text", [OWN + "0,40,8,a,\n,47,4,a,1\n", OWN + "0,40,8,a,\n0,60,8,b,\n"])
def test_where_no_turn_goes_on_there_is_nothing_to_say(tmp_path: Path, text: str) -> None:
    """One token too short, and sessions of one."""
    workload = built(tmp_path, text)
    assert workload.table.content is None and not note_of(workload)


def test_shared_prefixes_stand_before_conversations(tmp_path: Path) -> None:
    """Declared of sessions: every first turn begins with the same 16 tokens, and so does one that begins anew."""
    workload = built(tmp_path, GROWS, shared_prefixes=[SharedPrefix(tokens=16, share=1.0)])
    table = workload.table
    content, n = table.content, len(table)
    assert content is not None
    names = {int(table.num_prompt_tokens[i]): names_of(i, content[i], 8).of_content.tolist() for i in range(n)}
    assert names[60][:6] == names[40] and names[32][:4] == names[30]
    assert names[30][:2] == names[40][:2] == names[50][:2]
    own = [names[30][2:], names[40][2:], names[50][2:]]
    assert len({block for chain in own for block in chain}) == sum(map(len, own))


def test_prefixes_that_a_trace_tells_stand_before_them_too(tmp_path: Path) -> None:
    """prefix_id and prefix_tokens: the same, told by the trace."""
    header, *rows = GROWS.splitlines()
    told = [f"{header},prefix_id,prefix_tokens", *(f"{row},p,16" for row in rows)]
    declared = built(tmp_path, GROWS, shared_prefixes=[SharedPrefix(tokens=16, share=1.0)]).table.content
    content = built(tmp_path, "\n".join(told) + "\n").table.content
    assert isinstance(content, Ranges) and isinstance(declared, Ranges)
    for name in ("num_tokens", "lead_tokens", "first"):
        assert getattr(content, name).tolist() == getattr(declared, name).tolist()
    assert content.lead_first is not None and len(set(content.lead_first.tolist())) == 1


def lines(*prompts: tuple[list[int], int]) -> str:
    """One session of llmservingsim's, its prompts as token ids."""
    requests = [
        {"input_toks": len(ids), "output_toks": n, "tool_duration_ns": 1, "input_tok_ids": ids} for ids, n in prompts
    ]
    return json.dumps({"session_id": "a", "arrival_time_ns": 0, "sub_requests": requests})


def test_ids_of_the_next_prompt_say_what_the_answer_was(tmp_path: Path) -> None:
    """Token ids: the second prompt begins with the whole first, so what follows there is the answer; the third is long
    enough and begins with another prompt, so nothing is known of the second's answer."""
    first, other = list(range(32)), list(range(1000, 1200))
    second = [*first, *range(100, 150)]
    workload = built(tmp_path, lines((first, 20), (second, 40), (other, 3)), "t.jsonl")
    content = workload.table.content
    assert isinstance(content, Content)
    a, b, c = (list(content[i].ids) for i in range(3))
    assert (len(a), len(b)) == (52 // 16, 82 // 16)
    assert b[:3] == a
    assert not set(c) & set(b)
    assert note_of(workload).startswith("t.jsonl: 1 of 2 later turns")
    off = built(tmp_path, lines((first, 20), (second, 40), (other, 3)), "t.jsonl", sessions_continue=False)
    assert off.table.content is not None and len(off.table.content[0].ids) == 2
