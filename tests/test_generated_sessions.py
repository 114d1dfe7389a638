"""``workload.sessions``: conversations by distribution, against their definition written out turn by turn."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simserve.clients.plan import NOBODY
from simserve.errors import ScenarioError, TraceError
from simserve.kv_cache.identities import names_of
from simserve.run_directory import request_frames
from simserve.scenario import parse_scenario
from simserve.simulate import RunResult, simulate
from simserve.workload import Workload, build_workload, generated_sessions, read_trace
from tests.scenario_builders import SMALL
from tests.test_kept import same_beginning

MS = 10**6
TURNS = {"uniform": {"low": 2, "high": 6}}
CHAT: dict[str, Any] = {
    "num_requests": 400,
    "arrivals": {"process": "poisson", "rate_rps": 2.0},
    "prompt_tokens": {"uniform": {"low": 50, "high": 90}},
    "output_tokens": {"uniform": {"low": 5, "high": 30}},
    "sessions": {"turns": TURNS, "new_tokens": {"uniform": {"low": 1, "high": 20}}},
}


def chat(sessions: dict[str, Any] | None = None, **workload: Any) -> dict[str, Any]:
    return {**CHAT, **workload, "sessions": {**CHAT["sessions"], **(sessions or {})}}


def built(workload: dict[str, Any], seed: int = 0) -> Workload:
    config = parse_scenario({**SMALL, "workload": workload}).workload
    return build_workload(config, seed, Path())


def sessions_of(workload: Workload) -> list[list[int]]:
    """The rows of each session, in order."""
    session = workload.table.session
    assert session is not None
    return [np.flatnonzero(session == one).tolist() for one in range(int(session.max()) + 1)]


def test_a_prompt_is_all_that_was_said_and_some_more() -> None:
    """The first is by prompt_tokens, each later one the prompt and answer before it and 1 to 20 new tokens; 2 to 6
    turns each, 400 in all, so that at most one session is cut short."""
    workload = built(CHAT)
    table, sessions = workload.table, sessions_of(workload)
    assert len(table) == 400
    for rows in sessions:
        assert 50 <= table.num_prompt_tokens[rows[0]] <= 90
        for before, turn in pairwise(rows):
            whole = table.num_prompt_tokens[before] + table.num_output_tokens[before]
            assert 1 <= table.num_prompt_tokens[turn] - whole <= 20
    lengths = [len(rows) for rows in sessions]
    assert sum(length < 2 for length in lengths) <= 1
    assert set(lengths) - {1} == {2, 3, 4, 5, 6}
    assert workload.notes[-1].startswith(f"sessions: 400 requests in {len(sessions)} sessions; ")


def test_sessions_arrive_and_turns_wait() -> None:
    """First turns come at the arrivals' times; every other its think time after the answer before, exponential around
    its mean (400 draws: within 5 standard errors of a twentieth)."""
    workload = built(chat({"think_time_s": {"exponential": {"mean": 8.0}}}))
    turns, sessions = workload.clients.turns, sessions_of(workload)
    assert turns is not None
    for rows in sessions:
        assert [int(turns.next_id[i]) for i in rows] == [*rows[1:], NOBODY]
    waits_s = turns.wait_ns[turns.follows] / 1e9
    assert abs(waits_s.mean() / 8.0 - 1) < 0.25
    first = workload.table.arrival_ns[~turns.follows]
    assert (np.diff(first) >= 0).all()
    assert abs(first[-1] / 1e9 / (len(sessions) - 1) / 0.5 - 1) < 0.5  # 2 sessions a second
    assert (np.diff(workload.table.arrival_ns) >= 0).all()


def test_streams_are_independent() -> None:
    """Another distribution of one thing leaves every draw of the others as it was."""
    base = built(chat(concurrency=3, arrivals=None))
    other = built(chat({"new_tokens": {"fixed": 7}, "think_time_s": {"fixed": 1.0}}, concurrency=3, arrivals=None))
    assert base.table.num_output_tokens.tolist() == other.table.num_output_tokens.tolist()
    assert sessions_of(base) == sessions_of(other)
    firsts = [rows[0] for rows in sessions_of(base)]
    assert (base.table.num_prompt_tokens == other.table.num_prompt_tokens)[firsts].all()
    assert base.table.num_output_tokens.tolist() != built(CHAT, seed=1).table.num_output_tokens.tolist()


def test_new_tokens_are_as_prompts_by_default() -> None:
    """Null: each turn brings as much as a first prompt."""
    workload = built(chat({"new_tokens": None}, prompt_tokens={"fixed": 11}, output_tokens={"fixed": 4}))
    for rows in sessions_of(workload):
        assert workload.table.num_prompt_tokens[rows].tolist() == [11 + 15 * k for k in range(len(rows))]


def test_clients_play_generated_sessions() -> None:
    """With concurrency nobody has a time of his own, and a client thinks between sessions as workload says, between
    turns as the session does."""
    thinks = {"think_time_s": {"fixed": 3.0}}
    workload = built(chat(thinks, arrivals=None, concurrency=3, think_time_s={"fixed": 9.0}))
    turns, plan = workload.clients.turns, workload.clients
    assert turns is not None and plan.think_ns is not None
    assert not workload.table.arrival_ns.any()
    assert set(turns.wait_ns[turns.follows] // MS) == {3000}
    assert set(plan.think_ns // MS) == {9000}


def test_sessions_end_before_contexts_grow_too_long() -> None:
    """No later prompt is beyond the limit, the number of requests stays, and it is told."""
    workload = built(chat({"max_prompt_tokens": 120}))
    turns = workload.clients.turns
    assert turns is not None and len(workload.table) == 400
    assert (workload.table.num_prompt_tokens[turns.follows] <= 120).all()
    assert any("sessions end before a prompt of more than 120 tokens" in note for note in workload.notes)
    longer = [len(rows) for rows in sessions_of(built(CHAT))]
    assert sum(longer) / len(longer) > 400 / len(sessions_of(workload))


def test_first_prompts_beyond_the_limit_are_told() -> None:
    """First turns are sent whatever their length: how many of them are longer than the limit is said, and
    nothing is said of it where none is."""
    drawn = chat({"max_prompt_tokens": 120}, prompt_tokens={"values": [100, 200], "shuffle": False})
    workload = built(drawn)
    turns = workload.clients.turns
    assert turns is not None
    num_long = int((workload.table.num_prompt_tokens[~turns.follows] > 120).sum())
    assert num_long > 0
    told = (
        f"{num_long:,} of {(~turns.follows).sum():,} sessions begin with a prompt of more than 120 tokens, and end with"
    )
    assert f"{told} it" in workload.notes
    assert "sessions begin with" not in "".join(built(chat({"max_prompt_tokens": 10_000})).notes)


def test_sessions_that_lose_no_turn_do_not_end_early() -> None:
    """Of one turn each, however long: none ends before another."""
    notes = built(chat({"max_prompt_tokens": 5, "turns": {"fixed": 1}}, prompt_tokens={"fixed": 50})).notes
    assert not any("sessions end before" in note for note in notes)
    assert "400 of 400 sessions begin with a prompt of more than 5 tokens, and end with it" in notes


@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize("prefixes", [[], [{"tokens": 40, "share": 0.5, "count": 2}, {"tokens": 21, "share": 0.25}]])
def test_what_turns_hold(prefixes: list[dict[str, Any]], block_size: int) -> None:
    """A turn begins with all whole blocks that were known of its session, and a first one with its shared prefix, if
    any, on top of its prompt; the rest is nobody else's."""
    workload = built(chat(num_requests=60, shared_prefixes=prefixes))
    table, content = workload.table, workload.table.content
    assert content is not None
    names = [names_of(i, content[i], block_size).of_content.tolist() for i in range(60)]
    sizes = table.num_prompt_tokens + table.num_output_tokens
    assert [len(own) for own in names] == (sizes // block_size).tolist()
    for rows in sessions_of(workload):
        for before, turn in pairwise(rows):
            assert names[turn][: len(names[before])] == names[before]
    firsts = [rows[0] for rows in sessions_of(workload)]
    shared = {same_beginning(names[i], names[j]) for k, i in enumerate(firsts) for j in firsts[:k]}
    assert shared == ({0, 21 // block_size, 40 // block_size} if prefixes else {0})
    lasts = [names[rows[-1]] for rows in sessions_of(workload)]
    assert (sum(map(len, lasts)) > len({name for last in lasts for name in last})) == bool(prefixes)


def run(workload: dict[str, Any]) -> RunResult:
    cache = {"allocator": "paged", "num_blocks": 20_000}
    engine = {"policy": "chunked", "max_num_seqs": 16, "max_num_batched_tokens": 512, "max_model_len": 4096}
    data = {**SMALL, "model": "qwen2.5-0.5b", "step_time": {"roofline": "h100-sxm"}, "workload": workload}
    variants = {name: {"engine": {"kv_cache": {"prefix_caching": name == "with"}}} for name in ("with", "without")}
    return simulate(parse_scenario({**data, "engine": {**engine, "kv_cache": cache}, "variants": variants}, "s"))


def test_prefix_caching_computes_each_context_once() -> None:
    """With room for everything a turn computes what is new, what the answer's last token leaves open, and the rest of a
    block of 16: whatever the whole prompt is."""
    result = run(chat(arrivals=None, concurrency=4))
    found = {name: variant.records for name, variant in result.variants.items()}
    turns = result.workload.clients.turns
    assert turns is not None
    table, hits = result.workload.table, found["with"].requests.num_prefix_hit_tokens
    befores = np.flatnonzero(turns.next_id != NOBODY)
    there = (table.num_prompt_tokens + table.num_output_tokens)[befores] - 1
    assert hits[turns.next_id[befores]].tolist() == (there // 16 * 16).tolist()
    assert not hits[~turns.follows].any()
    assert not found["without"].num_prefix_hit_tokens


@pytest.mark.parametrize(
    ("sessions", "workload", "expected"),
    [
        ({"turns": {"fixed": 0}}, {}, r"workload.sessions.turns.fixed: must be ≥ 1 \(got 0\)"),
        ({}, {"length_correlation": 0.5}, "length_correlation must be 0 with sessions"),
        ({"turns": {"fixed": 50}, "think_time_s": {"fixed": 1e8}}, {}, "think_time_s: must add up to at most 1e"),
        (
            {"turns": {"fixed": 5000}, "max_prompt_tokens": 10},
            {},
            r"max_prompt_tokens: must leave sessions more of their turns \(got 10\)",
        ),
    ],
)
def test_sessions_that_cannot_be(sessions: dict[str, Any], workload: dict[str, Any], expected: str) -> None:
    """One sentence that names the key."""
    with pytest.raises(ScenarioError, match=expected):
        built(chat(sessions, **workload))


@pytest.mark.parametrize("prefixes", [[], [{"tokens": 40, "share": 0.8, "count": 2}]])
def test_a_run_of_sessions_replays_as_a_trace(tmp_path: Path, prefixes: list[dict[str, Any]]) -> None:
    """requests.parquet has session_id, wait_s and kept_tokens, and prefixes: read as a trace of ours it gives the same
    requests, and every one is served as before, to the nanosecond and the hit."""
    thinks = {"think_time_s": {"exponential": {"mean": 2.0}}}
    workload = chat(thinks, num_requests=80, shared_prefixes=prefixes)
    first = run(workload)
    frame, _ = request_frames(first)
    frame.to_parquet(tmp_path / "requests.parquet")
    again = run({"trace": str(tmp_path / "requests.parquet")})
    before, after = (result.variants["with"].records.requests for result in (first, again))
    assert before.table.session is not None and after.table.session is not None
    assert after.table.session.tolist() == before.table.session.tolist()
    for name in ("arrival_ns", "first_token_ns", "end_ns", "num_prefix_hit_tokens"):
        assert getattr(after, name).tolist() == getattr(before, name).tolist()
    assert after.num_prefix_hit_tokens.any()


def test_a_run_of_several_variants_is_no_trace(tmp_path: Path) -> None:
    """Their rows are the same requests twice: one sentence."""
    frames = pd.concat(request_frames(run(chat(num_requests=5))))
    frames.to_parquet(tmp_path / "requests.parquet")
    with pytest.raises(TraceError, match=r"must have the requests of one run \(got the variants with, without\); keep"):
        read_trace(tmp_path / "requests.parquet")


def test_many_sessions_that_end_early_are_refused_before_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of 100 turns of which a dozen fit draw some eight times as many turns as are asked for: one sentence
    where that is more than there is room for."""
    workload = chat({"turns": {"fixed": 100}, "max_prompt_tokens": 700})
    assert len(built(workload).table) == 400
    monkeypatch.setattr(generated_sessions, "_MOST_TURNS", 1000)
    with pytest.raises(ScenarioError, match=r"max_prompt_tokens: must leave .* lower workload.sessions.turns$"):
        built(workload)
