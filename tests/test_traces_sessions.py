"""Sessions in traces: several requests in a line, rounds in rows, chats; who waits for whom, and what turns keep."""

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.clients import ClientPlan, Turns
from simserve.errors import TraceError
from simserve.scenario import TraceWorkload
from simserve.tasks.early_stop import EarlyStop
from simserve.workload import Trace, Workload, build_workload, read_trace
from tests.strategies import table_of

DATA = Path(__file__).parents[1] / "../shared/data/traces/tracelab"
MS = 10**6
FLAT = {"input_toks": 40, "output_toks": 3, "arrival_time_ns": 7 * MS}
OWN = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s\n"
ROUNDS = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
in_one_folder = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(folder: Path, text: str, name: str = "t.csv") -> Trace:
    (folder / name).write_text(text)
    return read_trace(folder / name)


def test_the_session_of_a_round_may_be_called_id(tmp_path: Path) -> None:
    """As TraceLab's runner reads it: the same trace under either name; beside a session_id, an id is not used."""
    rows = "7,0,0,0,512,64,100\n7,0,1,576,128,64,100\n8,200,0,0,400,48,80\n"
    own, other = read(tmp_path, ROUNDS + rows), read(tmp_path, ROUNDS.replace("session_id", "id") + rows, "u.csv")
    assert other.format_name == "tracelab"
    assert told(other) == told(own)
    both = read(
        tmp_path, ROUNDS.replace("session_id", "session_id,id") + rows.replace("7,0", "7,x,0").replace("8,2", "8,x,2")
    )
    assert told(both) == told(own)
    with pytest.raises(TraceError, match="lacks the column 'session_id' of the tracelab format"):
        read(tmp_path, ROUNDS.replace("session_id", "sess") + rows, "v.csv")


def session(start_ns: int, *parts: tuple[int, int, int], **more: Any) -> dict[str, Any]:
    names = ("input_toks", "output_toks", "tool_duration_ns")
    requests = [dict(zip(names, part, strict=True)) for part in parts]
    return {"session_id": "a", "arrival_time_ns": start_ns, "sub_requests": requests, **more}


def lines(*rows: dict[str, Any]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def told(trace: Trace) -> list[tuple[int, ...]]:
    """(arrival in ms, prompt, session, wait in ms or -1) of every request."""
    assert trace.session is not None
    assert trace.wait_ns is not None
    waits = np.where(trace.wait_ns < 0, -1, trace.wait_ns // MS)
    columns = (trace.arrival_ns // MS, trace.num_prompt_tokens, trace.session, waits)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_line_holds_the_requests_of_a_session(tmp_path: Path) -> None:
    """Each waits the tool's time after the answer before it; the last tool's time is nobody's. Two lines of one name
    are two sessions, and requests beside them stand alone."""
    first = session(5 * MS, (10, 2, 30 * MS), (25, 2, 40 * MS), (4, 2, 99 * MS))
    trace = read(tmp_path, lines(first, FLAT, session(6 * MS, (8, 1, 0), (9, 1, 0))), "t.jsonl")
    assert told(trace) == [
        (0, 10, 0, -1),
        (1, 8, 1, -1),
        (1, 9, 1, 0),
        (2, 40, -1, -1),
        (30, 25, 0, 30),
        (70, 4, 0, 40),
    ]


def test_a_failed_turn_is_left_out_and_its_waits_stay(tmp_path: Path) -> None:
    """A turn without output is no request; the next waits for the last answer there was, both waits long. Where the
    first turn is the failed one, the second starts the session."""
    trace = read(tmp_path, lines(session(0, (10, 2, 30 * MS), (25, 0, 40 * MS), (4, 2, 0))), "t.jsonl")
    assert told(trace) == [(0, 10, 0, -1), (70, 4, 0, 70)]
    assert "t.jsonl: 1 row without output tokens (failed requests) left out" in trace.notes
    trace = read(tmp_path, lines(FLAT, session(7 * MS, (10, 0, 30 * MS), (25, 2, 4 * MS), (4, 2, 0))), "t.jsonl")
    assert told(trace) == [(0, 40, -1, -1), (30, 25, 0, -1), (34, 4, 0, 4)]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (session(0), "line 1: sub_requests: must be a list of at least one request, each a JSON object"),
        (session(0) | {"sub_requests": [1]}, "line 1: sub_requests: must be a list of at least one request"),
        (session(0) | {"sub_requests": "x"}, "line 1: sub_requests: must be a list of at least one request"),
        (session(0, (1, 1, -1), (1, 1, 0)), "row 1: tool_duration_ns: must be a number of nanoseconds, 0 or more"),
        ({"sub_requests": session(0, (1, 1, 1))["sub_requests"]}, "lacks the column 'arrival_time_ns'"),
        (session(0, (1, 1, 1)) | {"arrival_time_ns": None}, "row 1: arrival_time_ns: must be a number of nanoseconds"),
    ],
)
def test_a_bad_session_is_one_sentence(tmp_path: Path, row: dict[str, Any], expected: str) -> None:
    """Never a session that vanishes, or a time that is made up."""
    with pytest.raises(TraceError, match=f"^t.jsonl: {expected}"):
        read(tmp_path, lines(row), "t.jsonl")


def test_rounds_keep_what_they_say(tmp_path: Path) -> None:
    """TraceLab: a prompt is what is kept and what is appended. Whole blocks of 16 that are kept are those of the prompt
    and answer before; a context may shrink, and begin anew. A chain goes on to the end of its answer."""
    rows = ["s,0,0,0,48,16,100", "s,0,1,64,16,8,50", "s,0,2,32,16,8,0", "s,0,3,0,16,8,0", "r,20,0,0,32,1,0"]
    trace = read(tmp_path, ROUNDS + "\n".join(rows))
    assert told(trace) == [(0, 48, 0, -1), (20, 32, 1, -1), (100, 80, 0, 100), (150, 48, 0, 50), (150, 16, 0, 0)]
    assert trace.content is not None
    chains = [list(trace.content[i].ids) for i in range(len(trace))]
    assert [len(chain) for chain in chains] == [4, 2, 5, 3, 1]
    a, b, c, d = chains[0]
    assert chains[2][:4] == [a, b, c, d]
    assert chains[3][:2] == [a, b]
    fresh = [*chains[0], *chains[1], *chains[2][4:], *chains[3][2:], *chains[4]]
    assert len(set(fresh)) == len(fresh)


def test_rounds_out_of_order_are_refused(tmp_path: Path) -> None:
    """Who waits for whom is the file's order, which must be the turns'."""
    with pytest.raises(
        TraceError, match=r"^t.csv: row 2: round_idx: must be above that of the row before in its session"
    ):
        read(tmp_path, ROUNDS + "s,0,1,0,48,16,100\ns,0,0,64,16,8,50\n")


@pytest.mark.parametrize(
    ("name", "num_rows", "num_sessions", "prompts", "kept"),
    [("multi_session_example", 8, 3, 5_308, 3_240), ("multi_session_large", 303, 48, 1_150_397, 939_365)],
)
def test_the_public_sessions(
    name: str, num_rows: int, num_sessions: int, prompts: int | None, kept: int | None
) -> None:
    """Rows, sessions and tokens as a loop over the text counts them; waits are those of the rows before."""
    path = DATA / f"{name}.csv"
    if not path.exists():
        pytest.skip("the public sessions are not beside this checkout")
    rows = [line.split(",") for line in path.read_text().split()[1:]]
    trace = read_trace(path)
    assert len(trace) == len(rows) == num_rows
    assert trace.session is not None
    assert trace.wait_ns is not None
    assert len(set(trace.session.tolist())) == len({row[0] for row in rows}) == num_sessions
    assert trace.num_prompt_tokens.sum() == sum(int(row[3]) + int(row[4]) for row in rows) == prompts
    assert sum(int(row[3]) for row in rows) == kept
    waits = [int(a[6]) for a, b in pairwise(rows) if a[0] == b[0]]
    assert trace.wait_ns[trace.wait_ns >= 0].sum() == sum(waits) * MS


def test_our_own_sessions(tmp_path: Path) -> None:
    """wait_s: after the answer before in the session, whatever arrival_s says there; empty: at its own time. The first
    of a session has nobody to wait for: told."""
    trace = read(tmp_path, OWN + "1,10,1,a,\n0,20,1,b,0.5\n,30,1,a,0.25\n9,40,1,b,0\n3,50,1,a,\n")
    assert told(trace) == [(0, 20, 0, -1), (0, 40, 0, 0), (1000, 10, 1, -1), (1250, 30, 1, 250), (3000, 50, 1, -1)]
    assert "t.csv: 1 row with wait_s and nobody before in their session: at their own time" in trace.notes
    with pytest.raises(TraceError, match=r"^t.csv: must say whose answer wait_s counts from \(it lacks "):
        read(tmp_path, "arrival_s,num_prompt_tokens,num_output_tokens,wait_s\n0,1,1,2\n")
    with pytest.raises(TraceError, match=r"^t.csv: row 2: wait_s: must be a number of seconds, 0 or more \(got '-1'\)"):
        read(tmp_path, OWN + "0,1,1,a,\n0,1,1,a,-1\n")


def test_a_request_that_overtakes_the_one_that_waits(tmp_path: Path) -> None:
    """A session's order is the file's: a time of its own that lies before an earlier request's would turn it round."""
    with pytest.raises(TraceError, match=r"^t.csv: row 2: wait_s: must follow the row before it in its ses"):
        read(tmp_path, OWN + "0,10,1,a,\n,10,1,a,5\n3,10,1,a,\n")


def test_chats_are_sessions_with_times_of_their_own(tmp_path: Path) -> None:
    """Bailian: whoever answers to a chat belongs to its tree; times are as recorded, so nobody waits."""
    row = {"timestamp": 1.0, "input_length": 5, "output_length": 1, "hash_ids": [1], "turn": 1, "type": "text"}
    chats = [(1, -1), (2, -1), (3, 1), (4, 3), (5, 77)]
    rows = [row | {"chat_id": chat, "parent_chat_id": parent} for chat, parent in chats]
    trace = read(tmp_path, lines(*rows), "t.jsonl")
    assert trace.session is not None
    assert trace.session.tolist() == [0, 1, 0, 0, 2]
    assert trace.wait_ns is None
    assert "t.jsonl: 1 row whose parent_chat_id is not before them: each starts a session" in trace.notes


def test_sessions_are_replayed_in_turn(tmp_path: Path) -> None:
    """A workload has the same sessions, starts twice as dense at rate_scale 2 and waits as long; a limit keeps
    beginnings."""
    read(tmp_path, OWN + "0,10,1,a,\n8,20,1,b,\n,30,1,a,5\n,40,1,b,1\n")
    workload = build_workload(TraceWorkload(trace="t.csv", rate_scale=2), 0, tmp_path)
    assert (workload.table.arrival_ns // MS).tolist() == [0, 4000, 5000, 5000]
    assert workload.table.num_prompt_tokens.tolist() == [10, 20, 30, 40]
    turns = workload.clients.turns
    assert turns is not None
    assert turns.next_id.tolist() == [2, 3, -1, -1]
    assert (turns.wait_ns // MS).tolist() == [0, 0, 5000, 1000]
    assert "t.csv: 2 of 4 requests are sent when the one before in their session has ended" in workload.notes
    three = build_workload(TraceWorkload(trace="t.csv", limit=3), 0, tmp_path).clients.turns
    assert three is not None
    assert three.next_id.tolist() == [1, -1, -1]


@in_one_folder
@given(data=st.data(), sessions=st.lists(st.integers(-1, 2), min_size=1, max_size=12))
def test_waits_survive_whatever_is_left_out(tmp_path: Path, data: st.DataObject, sessions: list[int]) -> None:
    """Law: between any two requests of a session that are kept lie all waits in between, by a plain loop."""
    n = len(sessions)
    starts = data.draw(st.lists(st.integers(0, 50), min_size=n, max_size=n))
    waits = data.draw(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=n, max_size=n))
    outputs = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    overtakes, rows, times, last = False, [], [0] * n, {}
    for i, name in enumerate(sessions):
        follows = name >= 0 and name in last and waits[i] is not None
        times[i] = times[last[name]] + waits[i] if follows else starts[i]
        if name >= 0 and name in last and times[i] < times[last[name]]:
            overtakes = True  # refused where somebody waits: its own time lies before that of the request before it
        last[name] = i
        cell = "" if waits[i] is None or name < 0 else waits[i]
        rows.append(f"{starts[i]},{i + 1},{outputs[i]},{'' if name < 0 else name},{cell}")
    if overtakes or not any(outputs):
        return
    trace = read(tmp_path, OWN + "\n".join(rows))
    kept = sorted((i for i in range(n) if outputs[i]), key=lambda i: times[i])
    assert (trace.num_prompt_tokens - 1).tolist() == kept
    assert (trace.arrival_ns // 10**9).tolist() == [times[i] - times[kept[0]] for i in kept]


def test_sessions_are_never_stopped_early() -> None:
    """A screening's early stop reads a growing backlog as overload; turns that wait keep theirs bounded, so it does not
    apply to them, as it does not to a closed loop."""
    table = table_of([i * MS for i in range(5000)], [1] * 5000, [1] * 5000)
    engine = SimpleNamespace(max_num_seqs=4)
    turns = Turns(np.full(5000, -1), np.zeros(5000, np.int64))
    assert EarlyStop.for_run(Workload(table), engine) is not None
    assert EarlyStop.for_run(Workload(table, clients=ClientPlan(turns=turns)), engine) is None
