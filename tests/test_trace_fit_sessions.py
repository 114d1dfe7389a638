"""``simserve trace fit`` of traces whose turns wait for answers: what sessions are made of is found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simserve.cli import app
from simserve.scenario import parse_scenario
from simserve.trace_tools.fit import fit
from simserve.trace_tools.fit_sessions import Told, num_shrinking, plays_sessions
from simserve.workload.build import build_workload
from simserve.workload.trace import read_trace
from tests.scenario_builders import small

HEADER = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s\n"
SESSIONS = {
    "turns": {"uniform": {"low": 2, "high": 7}},
    "new_tokens": {"lognormal": {"mean": 300.0, "sigma": 0.7}},
    "think_time_s": {"exponential": {"mean": 4.0}},
}
WORKLOAD: dict[str, Any] = {
    "num_requests": 6000,
    "arrivals": {"process": "poisson", "rate_rps": 0.5},
    "prompt_tokens": {"lognormal": {"mean": 900.0, "sigma": 0.5}},
    "output_tokens": {"uniform": {"low": 10, "high": 200}},
    "sessions": SESSIONS,
}


def sessions_of(path: Path, workload: dict[str, Any], seed: int = 3) -> Path:
    """A workload's sessions as a trace of ours: first turns have a time, later ones a wait."""
    found = build_workload(parse_scenario(small(workload=workload)).workload, seed, Path())
    table, turns = found.table, found.clients.turns
    assert turns is not None
    assert table.session is not None
    columns = (table.arrival_ns, table.num_prompt_tokens, table.num_output_tokens, table.session, turns.wait_ns)
    rows = []
    for (at, prompt, output, session, wait), follows in zip(np.array(columns).T.tolist(), turns.follows, strict=True):
        times = ("", f"{wait / 1e9:.9f}") if follows else (f"{at / 1e9:.9f}", "")
        rows.append(f"{times[0]},{prompt},{output},s{session},{times[1]}\n")
    path.write_text(HEADER + "".join(rows))
    return path


def test_what_sessions_are_made_of_is_found_again(tmp_path: Path) -> None:
    """Turns, first prompts, new tokens, answers, waits and the rate of sessions within a few standard errors, and two
    traces of the generator are as near to the trace as to each other."""
    trace = read_trace(sessions_of(tmp_path / "t.csv", WORKLOAD))
    found = fit(trace)
    section, sessions = found.workload, found.workload["sessions"]
    assert sessions["turns"]["quantiles"].items() >= {"p0": 2, "p100": 7}.items()
    assert sessions["new_tokens"]["lognormal"]["mean"] == pytest.approx(300, rel=0.06)
    assert sessions["new_tokens"]["lognormal"]["sigma"] == pytest.approx(0.7, rel=0.06)
    assert sessions["think_time_s"]["exponential"]["mean"] == pytest.approx(4.0, rel=0.08)
    assert section["prompt_tokens"]["lognormal"]["mean"] == pytest.approx(900, rel=0.06)
    rates = [window["rate_rps"] for window in section["arrivals"]["windows"]]
    assert np.mean(rates) == pytest.approx(0.5, rel=0.15)
    for name, distance in found.quality["distances"].items():
        assert distance["trace"] < 0.08, name
    assert found.quality["left_out"] == []


def test_by_hand(tmp_path: Path) -> None:
    """A session of three turns, the last of which forgets; a request alone; waits of 2 and 3 s."""
    rows = "0,10,5,a,\n1,40,1,,\n,25,5,a,2\n,9,1,a,3\n"
    (tmp_path / "t.csv").write_text(HEADER + rows)
    trace = read_trace(tmp_path / "t.csv")
    told = Told.of(trace)
    assert told.starts_ns.tolist() == [0, 10**9]
    assert told.first_prompts.tolist() == [10, 40]
    assert told.turns.tolist() == [3, 1]
    assert told.new_tokens.tolist() == [10, -21]
    assert told.waits_s.tolist() == [2.0, 3.0]
    assert num_shrinking(trace) == 1
    found = fit(trace)
    assert found.workload["sessions"]["max_prompt_tokens"] == 40
    assert found.workload["sessions"]["think_time_s"] == {"fixed": 2.5}
    assert found.quality["left_out"] == ["contexts that shrink (1 turns)"]


def test_turns_at_their_own_times_are_no_sessions_that_are_played(tmp_path: Path) -> None:
    """Nobody knows how long their answers took: they stay arrivals, and sessions are named as left out."""
    (tmp_path / "t.csv").write_text(HEADER.replace(",wait_s", "") + "0,10,5,a\n1,30,5,a\n2,50,5,a\n")
    trace = read_trace(tmp_path / "t.csv")
    assert not plays_sessions(trace)
    found = fit(trace)
    assert "sessions" not in found.workload
    assert "sessions" in found.quality["left_out"]


def test_the_command_names_what_is_compared(tmp_path: Path) -> None:
    """Turns, new tokens, waits; and the section is one that a scenario takes."""
    path = sessions_of(tmp_path / "t.csv", WORKLOAD | {"num_requests": 300})
    done = CliRunner().invoke(app, ["trace", "fit", str(path)])
    assert done.exit_code == 0, done.output
    for said in ("gaps between sessions", "turns of a session", "new tokens of a turn", "waits after answers"):
        assert said in done.output


turn = st.tuples(st.integers(0, 3), st.integers(1, 500), st.integers(1, 50), st.integers(0, 5))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(turn, min_size=2, max_size=25))
def test_whatever_the_sessions_the_section_is_valid(tmp_path: Path, rows: list[tuple[int, int, int, int]]) -> None:
    """Law: any sessions, growing or shrinking, give a workload that a scenario takes and that can be drawn."""
    seen: set[int] = set()
    lines = []
    for i, (session, prompt, output, wait) in enumerate(rows):
        times = ("", str(wait)) if session in seen else (str(i), "")
        seen.add(session)
        lines.append(f"{times[0]},{prompt},{output},s{session},{times[1]}\n")
    (tmp_path / "t.csv").write_text(HEADER + "".join(lines))
    try:
        trace = read_trace(tmp_path / "t.csv")
    except Exception as error:
        assert "must follow the row before it" in str(error)  # a later session would come before a turn that waits
        return
    config = parse_scenario(small(workload=fit(trace).workload)).workload
    assert len(build_workload(config, 0, Path()).table) == len(rows)


def test_prefixes_that_sessions_share_are_not_in_the_generator(tmp_path: Path) -> None:
    """Sessions that begin with a text of others are drawn without it, which is said; sessions alone are all there."""
    path = sessions_of(tmp_path / "t.csv", {**WORKLOAD, "num_requests": 300})
    header, *rows = path.read_text().splitlines()
    shared = tmp_path / "shared.csv"
    for name, tokens, left_out in (("kept_tokens", "0", False), ("prefix_id,prefix_tokens,kept_tokens", "p,9,0", True)):
        shared.write_text("\n".join([f"{header},{name}", *(f"{row},{tokens}" for row in rows)]) + "\n")
        result = CliRunner().invoke(app, ["trace", "fit", str(shared)])
        assert result.exit_code == 0
        assert ("not in the generator: shared prefixes" in result.output) is left_out
