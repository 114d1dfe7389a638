"""Traces with sessions in a closed loop: clients who play whole sessions, one after the other."""

from pathlib import Path
from typing import Any

import numpy as np

from simserve.records import FINISHED
from simserve.scenario import TraceWorkload, parse_scenario
from simserve.scenario.client_models import FixedThinkTime
from simserve.simulate import RunResult, simulate
from simserve.workload import Workload, build_workload
from tests.scenario_builders import SMALL
from tests.shared_data import needs

MS = 10**6
PUBLIC = Path(__file__).parents[1] / "../shared/data/traces/tracelab/multi_session_large.csv"
BASE = {**SMALL, "step_time": {"roofline": "h100-sxm"}}
OWN = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s\n"
CHATS = "arrival_s,num_prompt_tokens,num_output_tokens,session_id\n0,1,1,a\n1,2,1,\n2,3,1,a\n3,4,1,b\n"


def built(folder: Path, text: str, **workload: Any) -> Workload:
    (folder / "t.csv").write_text(text)
    return build_workload(TraceWorkload(trace="t.csv", **workload), 0, folder)


def run(folder: Path, **workload: Any) -> RunResult:
    return simulate(parse_scenario({**BASE, "workload": {"trace": "t.csv", **workload}}, "s", folder))


def test_clients_play_sessions_in_the_order_of_the_trace(tmp_path: Path) -> None:
    """Nobody has a time of his own: every turn comes its wait after the answer before it, also one that has a time in
    the trace, which comes when its client has thought. Rows without a session are sessions of one."""
    text = OWN + "0,10,1,a,\n8,20,1,b,\n,30,1,a,5\n9,40,1,,\n20,50,1,a,\n"
    workload = built(tmp_path, text, concurrency=2, think_time_s=FixedThinkTime(fixed=0.25))
    assert workload.table.num_prompt_tokens.tolist() == [10, 30, 20, 40, 50]
    assert not workload.table.arrival_ns.any()
    turns = workload.clients.turns
    assert turns is not None
    assert turns.next_id.tolist() == [1, 4, -1, -1, -1]
    assert (turns.wait_ns[turns.follows] // MS).tolist() == [5000, 250]
    assert "t.csv: its times are not used, 2 clients play its sessions in order" in workload.notes


def test_a_run_of_played_sessions(tmp_path: Path) -> None:
    """One client: the second session begins when the first is over, and the client has thought; then there is nobody
    else, so no turn waits in the queue."""
    built(tmp_path, OWN + "0,10,1,a,\n1,20,1,b,\n,30,1,a,5\n,40,1,b,1\n", concurrency=1)
    result = run(tmp_path, concurrency=1, think_time_s={"fixed": 0.5})
    (variant,) = result.variants.values()
    r = variant.records.requests
    assert r.table.num_prompt_tokens.tolist() == [10, 20, 40, 30]
    assert (r.status == FINISHED).all()
    end_ns, waits_ms = r.end_ns, {3: 5000, 1: 500, 2: 1000}
    for before, after in [(0, 3), (3, 1), (1, 2)]:
        assert r.arrival_ns[after] == end_ns[before] + waits_ms[after] * MS
    assert (r.first_scheduled_ns == r.arrival_ns).all()


def test_chats_without_waits_are_played_as_clients_think(tmp_path: Path) -> None:
    """Where turns have times of their own an open loop keeps these; in a closed one each follows the answer before it,
    at once without a think time."""
    assert built(tmp_path, CHATS).clients.turns is None
    turns = built(tmp_path, CHATS, concurrency=1).clients.turns
    assert turns is not None
    assert turns.next_id.tolist() == [2, -1, -1, -1]
    assert turns.wait_ns[2] == 0


def test_more_clients_than_sessions_are_told(tmp_path: Path) -> None:
    """Three sessions of four requests: three clients are enough."""
    assert "4 clients for 3 sessions: 3 of them play one each" in built(tmp_path, CHATS, concurrency=4).notes
    assert not any("play one each" in note for note in built(tmp_path, CHATS, concurrency=3).notes)


@needs(PUBLIC)
def test_public_sessions_are_played() -> None:
    """TraceLab's 48 sessions by 6 clients: everybody is answered, and at no time are more than 6 sessions open."""
    engine = {**SMALL["engine"], "max_model_len": 100_000, "max_num_batched_tokens": 100_000}
    engine["kv_cache"] = {"allocator": "paged", "num_blocks": 100_000}
    data = {**BASE, "engine": engine, "workload": {"trace": PUBLIC.name, "concurrency": 6}}
    result = simulate(parse_scenario(data, "s", PUBLIC.parent))
    (variant,) = result.variants.values()
    r, turns = variant.records.requests, result.workload.clients.turns
    assert turns is not None
    assert (r.status == FINISHED).all()
    begins, lasts = r.arrival_ns[~turns.follows], r.end_ns[turns.next_id == -1]
    assert len(begins) == 48
    assert max((begins <= t).sum() - (lasts <= t).sum() for t in np.sort(begins)) <= 6


def test_one_session_is_one(tmp_path: Path) -> None:
    """However many clients there are for it."""
    one = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s\n0,10,5,a,\n,20,5,a,1\n"
    assert "4 clients for 1 session: 1 of them plays one" in built(tmp_path, one, concurrency=4).notes
