"""``simserve replay`` from the command line to its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from simserve.replay_command import EPILOG, replay
from tests.replay_server import ReplayServer

app = typer.Typer()
app.command(epilog=EPILOG)(replay)
FILES = {"replay.json", "requests.parquet", "events.parquet", "manifest.json"}


def _trace(folder: Path, due_s, num_prompt: int = 20, num_output: int = 5) -> Path:
    rows = "".join(f"{time_s:.6f},{num_prompt},{num_output}\n" for time_s in due_s)
    path = folder / "trace.csv"
    path.write_text("arrival_s,num_prompt_tokens,num_output_tokens\n" + rows)
    return path


def _run(*arguments: object, code: int = 0):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A replay of 40 requests on an honest server: its folder and what was printed."""
    folder = tmp_path_factory.mktemp("honest")
    with ReplayServer(ttft_s=0.06, itl_s=0.01).in_a_thread() as server:
        trace = _trace(folder, np.arange(40) * 0.025)
        done = _run(server.url, trace, "--out", folder / "out", "--csv")
    return folder / "out", done.stdout


def test_the_folder_is_whole(honest):
    """All the files, the csv that was asked for among them, and nothing half-written beside them."""
    folder, _ = honest
    assert {path.name for path in folder.iterdir()} == FILES | {"requests.csv"}
    assert {path.name for path in folder.parent.iterdir()} == {"out", "trace.csv"}


def test_the_summary_is_in_a_run_s_words(honest):
    """The keys of DESIGN section 5, and values that the server's timetable gives."""
    document = json.loads((honest[0] / "replay.json").read_text())
    assert document["kind"] == "simserve replay" and document["schema_version"] == 1
    assert document["num_requests"] == document["num_finished"] == document["num_attempts"] == 40
    assert document["output_tokens"] == 200
    assert document["offered_rps"] == pytest.approx(40, rel=0.1)
    assert document["requests_per_s"] == pytest.approx(40 / document["makespan_s"])
    assert document["total_tokens_per_s"] == pytest.approx(40 * 25 / document["makespan_s"])
    assert document["ttft_s"]["p50"] == pytest.approx(0.06, abs=0.01)
    assert document["tpot_s"]["p50"] == pytest.approx(0.01, abs=0.002)
    for key in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "normalized_latency_s", "lateness_s"):
        assert list(document[key]) == ["mean", "p50", "p90", "p95", "p99", "max"]
    assert document["http_statuses"] == {"200": 40} and document["finish_reasons"] == {"length": 40}
    assert document["prompt_tokens"] == {
        "num_counted": 40,
        "asked": 800,
        "counted": 800,
        "mean_error": 0.0,
        "max_error_tokens": 0,
    }
    assert document["output_lengths"] == {"asked": 200, "counted": 200, "num_short": 0, "num_long": 0}
    assert sum(document["itl_histogram"]["counts"]) == 40 * 4


def test_the_requests_are_a_recorded_run(honest):
    """Arrival, first and last token of each request, and the latencies that follow from them by DESIGN section 2."""
    frame = pd.read_parquet(honest[0] / "requests.parquet")
    assert len(frame) == 40 and (frame["status"] == "finished").all()
    assert (frame["num_prompt_tokens"] == 20).all() and (frame["num_output_tokens"] == 5).all()
    assert np.allclose(frame["ttft_s"], frame["first_token_s"] - frame["arrival_s"])
    assert np.allclose(frame["tpot_s"], (frame["last_token_s"] - frame["first_token_s"]) / 4)
    assert np.allclose(frame["e2e_s"], frame["last_token_s"] - frame["arrival_s"])
    assert np.allclose(frame["normalized_latency_s"], frame["e2e_s"] / 5)
    assert np.allclose(frame["due_s"], np.arange(40) * 0.025)
    assert (frame["end_s"] >= frame["last_token_s"]).all()
    assert pd.read_csv(honest[0] / "requests.csv")["ttft_s"].to_numpy() == pytest.approx(frame["ttft_s"].to_numpy())


def test_every_event_is_there(honest):
    """Five events of one token each per request; the first and the last are the request's own times."""
    events = pd.read_parquet(honest[0] / "events.parquet")
    frame = pd.read_parquet(honest[0] / "requests.parquet")
    by_request = events.groupby("request_id")
    assert (by_request["num_tokens"].sum() == 5).all() and (by_request.size() == 5).all()
    assert by_request["time_s"].min().to_numpy() == pytest.approx(frame["first_token_s"].to_numpy())
    assert by_request["time_s"].max().to_numpy() == pytest.approx(frame["last_token_s"].to_numpy())


def test_what_is_printed(honest):
    """Counts, rates and latencies with the folder's name at the end."""
    printed = honest[1]
    for word in ("finished requests", "offered requests/s", "TTFT", "ITL", "p99", "lateness of sending", "replay.json"):
        assert word in printed


def test_the_manifest_says_what_made_it_and_keeps_no_secret(tmp_path, monkeypatch):
    """The file's digest and how it was asked; neither the key nor a URL's password is in any file or on any screen."""
    with ReplayServer(key="s3cret-key").in_a_thread() as server:
        trace = _trace(tmp_path, [0.0])
        url = server.url.replace("http://", "http://me:passw0rd@")
        arguments = [url, str(trace), "--out", str(tmp_path / "out"), "--api-key", "s3cret-key"]
        monkeypatch.setattr(sys, "argv", ["simserve", "replay", *arguments])
        done = _run(*arguments)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["kind"] == "simserve replay" and len(manifest["source"]["sha256"]) == 64
    assert manifest["url"] == server.url and "replay" in manifest["command"]
    everything = done.output + "".join(path.read_text("latin-1") for path in (tmp_path / "out").iterdir())
    assert "s3cret-key" not in everything and "passw0rd" not in everything


def test_json_is_strict_and_alone_on_stdout(tmp_path):
    """A replay in which nothing was answered is JSON without NaN, its latencies null; faults are counted."""
    with ReplayServer(always=429, retry_after="0").in_a_thread() as server:
        trace = _trace(tmp_path, [0.0, 0.1])
        done = _run(server.url, trace, "--out", tmp_path / "out", "--json", "--max-attempts", 2)
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert document == json.loads((tmp_path / "out" / "replay.json").read_text())
    assert (document["num_rejected"], document["num_turned_away"], document["num_attempts"]) == (2, 4, 4)
    assert document["ttft_s"]["mean"] is None and document["requests_per_s"] == 0.0
    assert sum(document["faults"].values()) == 4


def test_a_hostile_server_costs_no_traceback(tmp_path):
    """Faults in their turn: the command ends with 0, says what went wrong, and what was answered is measured. The first
    reset meets a connection kept from the probes, so it counts as one found closed, and its request goes again."""
    faults = ["reset", None, 503, "garbage", None, "half a chunk", "silent", "html"]
    with ReplayServer(faults=faults).in_a_thread() as server:
        trace = _trace(tmp_path, np.arange(10) * 0.05)
        done = _run(server.url, trace, "--out", tmp_path / "out", "--ttft-timeout-s", 0.5)
    document = json.loads((tmp_path / "out" / "replay.json").read_text())
    counts = {status: document[f"num_{status}"] for status in ("finished", "failed", "rejected", "timed_out")}
    assert counts == {"finished": 5, "failed": 3, "rejected": 1, "timed_out": 1}
    assert document["num_stale_connections"] == 1
    assert "Traceback" not in done.output and "what went wrong" in done.stdout


def test_lengths_that_were_not_kept_are_said(tmp_path):
    """A server that ends every answer after 3 tokens of 5, and one whose words have 2 tokens where it said 1."""
    with ReplayServer(stops_after=3).in_a_thread() as server:
        done = _run(server.url, _trace(tmp_path, [0.0, 0.1]), "--out", tmp_path / "out")
    document = json.loads((tmp_path / "out" / "replay.json").read_text())
    assert document["output_lengths"] == {"asked": 10, "counted": 6, "num_short": 2, "num_long": 0}
    assert "2 answers are shorter than asked for" in " ".join(done.stdout.split())


def test_goodput_by_a_scenario_s_limits(tmp_path):
    """Half of the answers begin within the scenario's TTFT limit."""
    scenario = tmp_path / "little.yaml"
    scenario.write_text(
        "name: little\nmodel: 25m\nstep_time: {roofline: h100-sxm}\nslo: {ttft_s: 0.3}\n"
        "workload: {num_requests: 4, arrivals: {process: constant, rate_rps: 20}, prompt_tokens: {fixed: 20},\n"
        "  output_tokens: {fixed: 3}}\n"
        "engine: {policy: continuous, max_num_seqs: 8, max_num_batched_tokens: 2048, max_model_len: 2048,\n"
        "  kv_cache: {allocator: paged, block_size: 16, num_blocks: 512}}\n"
    )
    with ReplayServer(faults=["silent", "silent"]).in_a_thread() as server:
        _run(server.url, scenario, "--out", tmp_path / "out", "--ttft-timeout-s", 0.5)
    document = json.loads((tmp_path / "out" / "replay.json").read_text())
    assert document["slo_attainment"] == 0.5
    assert document["goodput_rps"] == pytest.approx(document["requests_per_s"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["localhost"], "URL: must be http://HOST:PORT"),
        (["http://127.0.0.1:9", "--served-model", "m"], "127.0.0.1:9: must be a server that runs (got no connection"),
        (["http://127.0.0.1:9"], "127.0.0.1:9/v1/models: must list the models"),
        (["http://127.0.0.1:9", "--timeout-s", "0"], "--timeout-s: must be > 0"),
        (["http://127.0.0.1:9", "--ttft-timeout-s", "nan"], "--ttft-timeout-s: must be > 0"),
        (["http://127.0.0.1:9", "--stall-timeout-s", "-1"], "--stall-timeout-s: must be > 0"),
        (["http://127.0.0.1:9", "--api-key", "two words"], "--api-key: must be one word"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path, arguments, said):
    """Exit code 2, one line on stderr, no folder."""
    url, *options = arguments
    done = _run(url, _trace(tmp_path, [0.0]), "--out", tmp_path / "new" / "out", *options, code=2)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and said in errors[0] and "Traceback" not in done.output
    assert {path.name for path in tmp_path.iterdir()} == {"trace.csv"}


def test_only_a_replay_s_folder_is_replaced(tmp_path):
    """An earlier replay is replaced; a folder with anything else is refused before a request is sent."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with ReplayServer().in_a_thread() as server:
        trace = _trace(tmp_path, [0.0])
        _run(server.url, trace, "--out", tmp_path / "out", "--csv")
        _run(server.url, trace, "--out", tmp_path / "out")
        sent = len(server.bodies)
        done = _run(server.url, trace, "--out", tmp_path / "mine", code=2)
        assert len(server.bodies) == sent
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert "thesis.txt" in done.stderr and (tmp_path / "mine" / "thesis.txt").exists()


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    """SIGINT in the middle of a replay: exit code 130, a whole folder, finished requests measured, the rest unsent."""
    code = (
        "import typer; from simserve.replay_command import replay;"
        "app = typer.Typer(pretty_exceptions_enable=False); app.command()(replay); app()"
    )
    with ReplayServer(ttft_s=0.02, itl_s=0.005).in_a_thread() as server:
        trace = _trace(tmp_path, np.arange(400) * 0.05)
        command = [sys.executable, "-c", code, server.url, str(trace), "--out", str(tmp_path / "out")]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"NO_COLOR": "1"}
        )
        for _ in range(600):
            time.sleep(0.05)
            if len(server.arrived_s) > 15 or process.poll() is not None:
                break
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr and "interrupted: what was measured is kept" in stderr
    assert "finished requests" in stdout
    document = json.loads((tmp_path / "out" / "replay.json").read_text())
    assert document["interrupted"] and document["num_finished"] >= 10 and document["num_unsent"] > 300
    counted = sum(document[f"num_{s}"] for s in ("finished", "cancelled", "unsent", "failed", "rejected", "timed_out"))
    assert counted == 400


def test_help_has_examples_and_is_light():
    """``--help`` shows how it is used, and importing the command loads neither pandas nor NumPy nor asyncio's TLS."""
    assert "simserve replay http://127.0.0.1:8000" in " ".join(_run("--help").stdout.split())
    code = "import sys, simserve.replay_command; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not {"pandas", "numpy", "pyarrow", "pydantic"} & loaded
