"""`simserve sweep` from the outside: the folder, resuming, the same bytes, reports of points, and wrong input."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.tasks.task import code_revision
from tests.scenario_builders import write
from tests.sweep_builders import queue, service_s
from tests.test_tasks_runner import needs_dask

RATE = "workload.arrivals.rate_rps"
FILES = ["manifest.json", "points.jsonl", "points.parquet", "sweep.html", "sweep.json"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {**queue(0.5, 80), "variants": {"one": {}, "two": {"engine": {"max_num_seqs": 2}}}}, "queue.yaml")


def _sweep(*arguments):
    return CliRunner().invoke(app, ["sweep", "queue.yaml", *arguments])


def _rates(*utilizations):
    return f"{RATE}={','.join(f'{utilization / service_s():.6g}' for utilization in utilizations)}"


GRID = ("--over", _rates(0.3, 0.6, 0.9), "--replications", "2", "--workers", "1", "--reports", "none")


def _lines(folder):
    return Path(folder, "points.jsonl").read_bytes().splitlines(keepends=True)


def test_a_sweep_leaves_its_folder_and_says_where_the_page_is():
    """The files of the contract, nothing hidden; manifest of its kind; the table and the page on stdout."""
    done = _sweep(*GRID)
    assert done.exit_code == 0, done.output
    assert "queue: qwen2.5-0.5b, 6 points, 2 replications" in done.output
    assert "curves: reports/queue-sweep/sweep.html" in done.output
    assert sorted(os.listdir("reports/queue-sweep")) == FILES
    manifest = json.loads(Path("reports/queue-sweep/manifest.json").read_text())
    assert (manifest["kind"], manifest["num_points"], manifest["seed"]) == ("simserve sweep", 6, 0)
    document = json.loads(Path("reports/queue-sweep/sweep.json").read_text())
    assert [point["report"] for point in document["points"]] == [None] * 6


def test_a_rerun_simulates_nothing_and_gives_the_same_bytes():
    """points.jsonl does not grow; sweep.json and points.parquet are equal to the byte."""
    assert _sweep(*GRID, "--quiet").exit_code == 0
    folder = Path("reports/queue-sweep")
    before = {name: (folder / name).read_bytes() for name in ("points.jsonl", "points.parquet", "sweep.json")}
    assert _sweep(*GRID, "--quiet").exit_code == 0
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_more_points_simulate_only_those():
    """A wider grid keeps what is there, in place, and adds the rest: 2 new rates × 2 replications."""
    assert _sweep(*GRID, "--quiet").exit_code == 0
    before = _lines("reports/queue-sweep")
    wider = ("--over", _rates(0.3, 0.4, 0.6, 0.7, 0.9), *GRID[2:], "--quiet")
    assert _sweep(*wider).exit_code == 0
    after = _lines("reports/queue-sweep")
    assert after[: len(before)] == before
    assert len(after) == len(before) + 4


def _in_background(out, *more):
    code = f"import simserve.tasks.task as t; t.same_checkout({code_revision()!r})\n"  # whoever commits meanwhile
    code += "import time, simserve.tasks.store as s; f = s.PointStore.put\n"
    code += "def slow(self, key, result): f(self, key, result); time.sleep(0.2)\n"
    code += "s.PointStore.put = slow\nimport simserve.cli\nif __name__ == '__main__': simserve.cli.main()"
    command = [sys.executable, "-c", code, "sweep", "queue.yaml", *GRID, "--out", out, *more]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    began = time.monotonic()
    while not (Path(out, "points.jsonl").exists() and len(_lines(out)) >= 3):
        assert child.poll() is None and time.monotonic() - began < 60
        time.sleep(0.02)
    return child


def test_a_killed_sweep_goes_on_where_it_was_and_ends_the_same():
    """SIGKILL after the second of six results, its last line torn: the rerun keeps what was whole, runs the rest, and
    the document is that of a sweep that was never killed."""
    child = _in_background("killed")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stderr.close()
    assert not Path("killed/sweep.json").exists()
    kept = _lines("killed")
    Path("killed/points.jsonl").write_bytes(b"".join(kept)[:-20])
    assert _sweep(*GRID, "--out", "killed", "--quiet").exit_code == 0
    assert _lines("killed")[: len(kept) - 1] == kept[:-1]
    assert len(_lines("killed")) == 1 + 6
    assert _sweep(*GRID, "--out", "whole", "--quiet").exit_code == 0
    for name in ("sweep.json", "points.parquet"):
        assert Path("killed", name).read_bytes() == Path("whole", name).read_bytes()
    assert sorted(os.listdir("killed")) == FILES


def test_an_interrupted_sweep_keeps_what_is_finished():
    """Ctrl-C: exit code 130, one line that says so, no page yet, and the results on disk."""
    child = _in_background("interrupted")
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 130
    assert said.strip().endswith("interrupted: what was simulated is kept; the same command goes on from there")
    assert os.listdir("interrupted") == ["points.jsonl"]
    assert len(_lines("interrupted")) >= 3


@needs_dask
def test_an_interrupted_cluster_says_one_line_and_no_traceback():
    """Ctrl-C reaches dask's workers too, as it does in a terminal: nobody mourns them."""
    child = _in_background("interrupted", "--cluster", "local")
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    first, *rest = said.strip().splitlines()
    assert first.startswith("dask cluster: 1 workers")
    assert rest == ["interrupted: what was simulated is kept; the same command goes on from there"]


def test_points_get_run_directories_and_commands_that_make_them_again():
    """runs/0001 is an ordinary run of the second setting: the command beside the point writes the same summary."""
    done = _sweep("--over", _rates(0.3, 0.6), "--replications", "1", "--workers", "2", "--json", "--seed", "3")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document == json.loads(Path("reports/queue-sweep/sweep.json").read_text())
    reports = [point["report"] for point in document["points"]]
    assert reports == [f"runs/{i:04d}/report.html" for i in (0, 0, 1, 1)]
    command = shlex.split(document["points"][2]["command"])
    assert command[:3] == ["simserve", "run", "queue.yaml"]
    assert CliRunner().invoke(app, [*command[1:], "--no-report", "--quiet", "--out", "again"]).exit_code == 0
    again = json.loads(Path("again/summary.json").read_text())
    assert again == json.loads(Path("reports/queue-sweep/runs/0001/summary.json").read_text())
    for point in document["points"][2:]:
        measured, summary = point["metrics"], again["variants"][point["variant"]]
        assert measured["ttft_s.p99"]["value"] == summary["ttft_s"]["p99"]
        assert measured["requests_per_s"]["value"] == pytest.approx(summary["requests_per_s"])


def test_a_run_of_the_user_s_own_is_neither_removed_nor_replaced():
    """Somebody ran into the sweep's runs folder: under a name of the sweep's it is refused before anything is
    simulated, under another it stays."""
    wanted = ("--over", _rates(0.3, 0.6), "--replications", "1", "--workers", "1", "--quiet")
    assert _sweep(*wanted).exit_code == 0
    runs = Path("reports/queue-sweep/runs")
    for name, over in (("0007", _rates(0.3)), ("mine", _rates(0.3)), ("0001", _rates(0.3, 0.7))):
        assert CliRunner().invoke(app, ["run", "queue.yaml", "--quiet", "--out", str(runs / "new")]).exit_code == 0
        shutil.rmtree(runs / name, ignore_errors=True)
        (runs / "new").rename(runs / name)
        before = len(_lines("reports/queue-sweep"))
        done = _sweep("--over", over, *wanted[2:])
        assert (done.exit_code, (runs / name / "summary.json").exists()) == (2 if name == "0001" else 0, True)
    assert f"error: {runs / '0001'}: must be a run that a sweep wrote, or not there" in done.output
    assert len(_lines("reports/queue-sweep")) == before


def test_a_folder_of_another_scenario_s_sweep_is_refused():
    """--out of a sweep of another name: nothing is run, and its curves stay."""
    assert _sweep(*GRID, "--quiet", "--out", "x").exit_code == 0
    before = Path("x/sweep.json").read_bytes()
    done = _sweep(*GRID, "--quiet", "--out", "x", "--set", "name=other")
    assert done.exit_code == 2
    assert "error: x: must be empty or hold a sweep of scenario other (it has one of queue)" in done.output
    assert Path("x/sweep.json").read_bytes() == before


def test_reports_that_stand_are_kept_and_others_go():
    """A rerun leaves equal runs untouched; a grid without a setting removes its run."""
    assert _sweep("--over", _rates(0.3, 0.6), "--replications", "1", "--workers", "1", "--quiet").exit_code == 0
    runs = Path("reports/queue-sweep/runs")
    before = (runs / "0000" / "manifest.json").read_bytes()
    assert _sweep("--over", _rates(0.3), "--replications", "1", "--workers", "1", "--quiet").exit_code == 0
    assert os.listdir(runs) == ["0000"]
    assert (runs / "0000" / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--over", "engine.max_model_len=8192,1"), "error: queue.yaml: engine.max_model_len: must be ≥ 2 (got 1)"),
        (("--over", "engine.max_num_seqs=1,2"), "error: --over engine.max_num_seqs: variant 'two' sets it itself"),
        (("--over", "engine.max_num_sqs=1,2"), "unknown key 'max_num_sqs' (did you mean 'max_num_seqs'?)"),
        (("--over", "engine.block_size=1"), "unknown key 'block_size'"),
        (("--over", "step_time.profile=nowhere"), "'nowhere' is neither a shipped profile nor a file"),
        (("--over", "workload.prompt_tokens.fixed=8,90000"), "must be able to serve some request"),
        (("--over", "engine.max_model_len=1e3"), "which YAML reads as text; write 1000"),
        (("--over", "1:40:16"), "error: --over 1:40:16: must have the form key.path=values"),
        (("--warmup", "0.9"), "error: --warmup: must be auto, or a share of the requests from 0 to 0.5 (got 0.9)"),
        (("--set", "sweep.metric=goodput"), "error: queue.yaml: sweep.metric: must be a latency such as ttft_s.p99"),
        (("--set", "sweep.replications=0"), "error: queue.yaml: sweep.replications: must be ≥ 1 (got 0)"),
        (("--replications", "20000"), "sweep.replications: must be ≤ 10,000 (got 20000)"),
        (("--out", "queue.yaml"), "error: queue.yaml: must be a folder (it is a file); choose another --out"),
    ],
)
def test_wrong_input_is_one_sentence_before_anything_runs(arguments, message):
    """Exit code 2, one line, no folder left behind."""
    before = sorted(os.listdir())
    done = _sweep(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(os.listdir()) == before


def test_a_scenario_with_a_sweep_block_still_runs():
    """`simserve run` leaves the block aside, in its results too."""
    Path("swept.yaml").write_text(Path("queue.yaml").read_text() + f"sweep: {{over: {{{RATE}: '1:40:3'}}}}\n")
    for name in ("queue", "swept"):
        arguments = ["run", f"{name}.yaml", "--no-report", "--quiet", "--out", name]
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert Path("queue/summary.json").read_bytes() == Path("swept/summary.json").read_bytes()
    manifests = [json.loads(Path(name, "manifest.json").read_text()) for name in ("queue", "swept")]
    assert manifests[0]["scenario_digest"] == manifests[1]["scenario_digest"]


def test_help_shows_examples():
    """How values are written, and commands to copy."""
    done = CliRunner().invoke(app, ["sweep", "--help"])
    assert done.exit_code == 0
    assert "1:40:16:log" in done.output
    assert "simserve sweep scenarios/chat.yaml" in done.output
