"""Validation against a server by its URL: replayed as often as asked, each replay kept, scored as clients saw it."""

import json

import pytest
import typer
from typer.testing import CliRunner

from simserve.validate_command import validate
from tests.replay_server import ReplayServer
from tests.validate_builders import scenario_file

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(validate)
WORKLOAD = {
    "num_requests": 12,
    "arrivals": {"process": "constant", "rate_rps": 40.0},
    "prompt_tokens": {"fixed": 20},
    "output_tokens": {"fixed": 6},
}


def test_a_server_is_replayed_and_scored(tmp_path):
    """A first token after 60 ms and one every 10 ms: measured so, twice, with noise; each can be scored again."""
    scenario = scenario_file(tmp_path, workload=WORKLOAD)
    out = tmp_path / "out"
    with ReplayServer(ttft_s=0.06, itl_s=0.01).in_a_thread() as server:
        words = [str(scenario), "--url", server.url, "--runs", "2", "--out", str(out), "-q"]
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    document = json.loads((out / "validation.json").read_text())
    metrics = document["metrics"]
    assert document["engine"]["kind"] == "by URL" and document["engine"]["num_runs"] == 2
    assert metrics["ttft_s"]["p50"]["measured"] == pytest.approx(0.06, rel=0.5)
    assert metrics["tpot_s"]["mean"]["measured"] == pytest.approx(0.01, rel=0.5)
    assert metrics["itl_s"]["p50"]["measured"] == pytest.approx(0.01, rel=0.5)
    assert metrics["ttft_s"]["mean"]["noise"] is not None and metrics["num_preemptions"]["measured"] is None
    folders = [tmp_path / f"out-replay-{i}" for i in (1, 2)]
    assert all((folder / "replay.json").is_file() for folder in folders)
    words = [str(scenario), "--measured", str(folders[0]), "--out", str(tmp_path / "again"), "-q"]
    assert CliRunner().invoke(app, words).exit_code == 0
    again = json.loads((tmp_path / "again" / "validation.json").read_text())["metrics"]
    pair = (again["ttft_s"]["mean"]["measured"], metrics["ttft_s"]["mean"]["measured_range"])
    assert pair[1][0] <= pair[0] <= pair[1][1]


def test_answers_that_fail_are_unfinished_requests(tmp_path):
    """Two of twelve are refused: they are noted, and the others scored."""
    scenario = scenario_file(tmp_path, workload=WORKLOAD)
    with ReplayServer(ttft_s=0.02, itl_s=0.002, faults=[500, None, 500]).in_a_thread() as server:
        words = [str(scenario), "--url", server.url, "--runs", "1", "--out", str(tmp_path / "out")]
        done = CliRunner().invoke(app, words, env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "2 of 12 requests have no last token" in done.stdout


def test_neither_key_nor_password_is_kept(tmp_path, monkeypatch):
    """Not in the manifest of the validation, nor in that of its replay, nor on the page."""
    scenario = scenario_file(tmp_path, workload=WORKLOAD)
    with ReplayServer(ttft_s=0.01, itl_s=0.001, key="s3cret").in_a_thread() as server:
        url = server.url.replace("http://", "http://me:pa55word@")
        words = [str(scenario), "--url", url, "--api-key", "s3cret", "--runs", "1", "--out", str(tmp_path / "out")]
        monkeypatch.setattr("sys.argv", ["simserve", "validate", *words])
        done = CliRunner().invoke(app, [*words, "-q"])
    assert done.exit_code == 0, done.output
    for path in (*(tmp_path / "out").iterdir(), *(tmp_path / "out-replay-1").iterdir()):
        assert b"s3cret" not in path.read_bytes() and b"pa55word" not in path.read_bytes(), path
    assert server.url in json.loads((tmp_path / "out" / "manifest.json").read_text())["command"]


def test_a_server_that_is_not_there_is_one_sentence(tmp_path):
    """Exit code 2; no folder of results appears."""
    done = CliRunner().invoke(
        app,
        [
            str(scenario_file(tmp_path, workload=WORKLOAD)),
            "--url",
            "http://127.0.0.1:9",
            "--out",
            str(tmp_path / "out"),
        ],
    )
    assert done.exit_code == 2 and done.stderr.startswith("error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["served.yaml"]
