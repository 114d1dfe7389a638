"""The command line: what it prints, what it writes, and how it ends."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

import simserve
from simserve import cli
from simserve.errors import SchedulerStalled
from tests.run_builders import SCENARIO

RUNNER = CliRunner()
POISSON = {"process": "poisson", "rate_rps": 1.0}
RUN_FILES = {"report.html", "summary.json", "requests.parquet", "timeline.parquet", "manifest.json"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with two.yaml in it: three requests, two variants."""
    monkeypatch.chdir(tmp_path)
    _write_scenario(tmp_path / "two.yaml", SCENARIO)
    return tmp_path


def _write_scenario(path, scenario):
    path.write_text(yaml.safe_dump(scenario, sort_keys=False))


def _invoke(*arguments):
    return RUNNER.invoke(cli.app, arguments)


def _run(*arguments):
    return _invoke("run", "two.yaml", "--no-report", *arguments)


def _listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_run_writes_the_folder_and_prints_the_variants_side_by_side(folder):
    """The whole command: a table with a column per variant, ratios to the first, and where the report is."""
    done = _invoke("run", "two.yaml")
    assert done.exit_code == 0, done.output
    assert {path.name for path in (folder / "reports" / "two").iterdir()} == RUN_FILES
    head = next(line for line in done.stdout.splitlines() if "slow" in line)
    assert head.split() == ["slow", "fast"]
    tokens = next(line for line in done.stdout.splitlines() if line.strip().startswith("output tokens/s"))
    assert "(1.00×)" in tokens
    assert "reports/two/report.html" in done.stdout
    assert "uncalibrated" in done.stdout  # step times from a datasheet must say so


def test_latencies_are_printed_in_milliseconds(folder):
    """Seconds inside, milliseconds only when printed: the table's TTFT is the summary's × 1000."""
    done = _run()
    ttft = json.loads((folder / "reports/two/summary.json").read_text())["variants"]["slow"]["ttft_s"]["mean"]
    row = next(line for line in done.stdout.splitlines() if "TTFT mean, ms" in line)
    assert float(row.replace("TTFT mean, ms", "").split()[0].replace(",", "")) == pytest.approx(ttft * 1000, rel=0.01)


def test_the_same_scenario_and_seed_give_the_same_bytes(folder):
    """INV-7 through the command: summary.json and requests.parquet are equal, and another seed's are not."""
    _write_scenario(folder / "two.yaml", SCENARIO | {"workload": SCENARIO["workload"] | {"arrivals": POISSON}})
    for out, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert _run("--out", out, "--seed", seed).exit_code == 0
    a, b, c = ((folder / name / "summary.json").read_bytes() for name in "abc")
    assert a == b != c
    assert pd.read_parquet("a/requests.parquet").equals(pd.read_parquet("b/requests.parquet"))
    assert json.loads((folder / "c" / "manifest.json").read_text())["seed"] == 4


def test_set_overrides_one_key(folder):
    """``--set`` reaches the simulation and the manifest; it may be repeated."""
    done = _run("--set", "workload.num_requests=5", "--set", "slo.ttft_s=9")
    assert done.exit_code == 0, done.output
    manifest = json.loads((folder / "reports/two/manifest.json").read_text())
    summary = json.loads((folder / "reports/two/summary.json").read_text())
    assert manifest["resolved_scenario"]["slo"]["ttft_s"] == 9
    assert summary["variants"]["fast"]["num_requests"] == 5


def test_paths_below_the_working_directory_are_recorded_from_there(folder):
    """No path of the machine but those that the user typed: a trace named by ``--set`` is recorded as typed."""
    (folder / "mine.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens\n0,5,2\n1,5,2\n")
    done = _run("--set", "workload={trace: mine.csv}")
    assert done.exit_code == 0, done.output
    text = (folder / "reports/two/manifest.json").read_text()
    assert json.loads(text)["resolved_scenario"]["workload"]["trace"] == "mine.csv"
    assert str(folder) not in text


def test_optional_files(folder):
    """``--trace`` adds the trace, ``--no-report`` leaves the page out."""
    assert _run("--trace").exit_code == 0
    names = {path.name for path in (folder / "reports" / "two").iterdir()}
    assert names == RUN_FILES - {"report.html"} | {"trace.json.gz"}
    with gzip.open(folder / "reports/two/trace.json.gz", "rt") as file:
        phases = {event.get("cat") for event in json.load(file)["traceEvents"]}
    assert {"prefill", "decode"} <= phases


def test_quiet_prints_nothing(folder):
    """A script that asked for silence gets it; the files are there."""
    done = _run("--quiet")
    assert (done.stdout, done.stderr) == ("", "")
    assert (folder / "reports/two/summary.json").exists()


def test_a_second_run_replaces_the_first(folder):
    """Running again is not an error."""
    assert _run().exit_code == _run().exit_code == 0
    assert _listing(folder / "reports") == ["two", *(f"two/{name}" for name in sorted(RUN_FILES - {"report.html"}))]


WRONG_SCENARIOS = {
    "unknown key": ({"modle": "x"}, "modle.*did you mean"),
    "unknown policy": ({"engine": {**SCENARIO["engine"], "policy": "continous"}}, "policy.*continuous"),
    "block_size 0": (
        {"engine": {**SCENARIO["engine"], "kv_cache": {"allocator": "paged", "block_size": 0, "num_blocks": 9}}},
        r"block_size: must be .* \(got 0\)",
    ),
    "unknown model": ({"model": "qwen2.5-0.6b"}, "qwen2.5-0.6b"),
    "unknown hardware": (
        {"step_time": {"roofline": "h100-sxmm"}},
        r"two\.yaml: variants\.slow: step_time.roofline: .*h100-sxmm",
    ),
    "arrivals over decades, and no variants": (
        {"workload": {**SCENARIO["workload"], "arrivals": {"process": "constant", "rate_rps": 1e-9}}, "variants": {}},
        r"two\.yaml: workload\.arrivals\.rate_rps: ",
    ),
    "no such profile": ({"step_time": {"profile": "nowhere.json"}}, "nowhere.json"),
    "no such trace": ({"workload": {"trace": "nowhere.csv"}}, "nowhere.csv"),
    "nothing fits": (
        {"engine": {**SCENARIO["engine"], "kv_cache": {"allocator": "paged", "memory": "1KiB"}}},
        r"two\.yaml: variants\.slow: engine\.kv_cache.*1024",
    ),
    "a cache smaller than one request": (
        {"engine": {**SCENARIO["engine"], "kv_cache": {"allocator": "paged", "block_size": 1, "num_blocks": 2}}},
        r"two\.yaml: variants\.slow: must be able to serve some request, but all 3 are refused",
    ),
    "a profile for another model": (
        {"model": "llama-3.1-8b", "step_time": {"profile": "25m-cpu-fp32"}},
        "25m-cpu-fp32: model: must be measured on llama-3.1-8b",
    ),
}


@pytest.mark.parametrize("case", WRONG_SCENARIOS)
def test_a_wrong_scenario_is_one_sentence_and_exit_code_2(folder, case):
    """Bad input: one line on stderr that begins with ``error:``, nothing on stdout, nothing written."""
    changes, said = WRONG_SCENARIOS[case]
    _write_scenario(folder / "two.yaml", SCENARIO | changes)
    _fails_in_one_sentence(folder, _run(), said)


AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
WRONG_TRACES = {
    "renamed column": (
        b"TIMESTAMP,ContextToken,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n",
        "ContextTokens",
    ),
    "missing column": (b"TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.68,374\n", "GeneratedTokens"),
    "NaN": (AZURE + b"2023-11-16 18:15:46,NaN,4\n", "row 1: ContextTokens: .*got 'NaN'"),
    "negative length": (AZURE + b"2023-11-16 18:15:46,5,-4\n", "row 1: GeneratedTokens: .*got '-4'"),
    "empty": (b"", "trace"),
    "no rows": (AZURE, "trace"),
    "huge length": (
        AZURE + b"2023-11-16 18:15:46,99999999999999999999,4\n",
        "Context",
    ),
    "truncated gzip": (gzip.compress(AZURE * 99)[:-20], "trace"),
}


@pytest.mark.parametrize("case", WRONG_TRACES)
def test_a_wrong_trace_is_one_sentence_and_exit_code_2(folder, case):
    """As for scenarios: the file is named, nothing is half-written."""
    content, said = WRONG_TRACES[case]
    name = "trace.csv.gz" if "gzip" in case else "trace.csv"
    (folder / name).write_bytes(content)
    _write_scenario(folder / "two.yaml", SCENARIO | {"workload": {"trace": name, "format": "azure"}})
    _fails_in_one_sentence(folder, _run(), said)


def test_a_missing_scenario_and_a_yaml_bomb_are_one_sentence(folder):
    """No such file, and a file that unfolds to a billion nodes, end at once with exit code 2."""
    _fails_in_one_sentence(folder, _invoke("run", "nowhere.yaml"), "nowhere.yaml")
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    (folder / "bomb.yaml").write_text("\n".join(levels))
    began = time.monotonic()
    _fails_in_one_sentence(folder, _invoke("run", "bomb.yaml"), "bomb.yaml")
    assert time.monotonic() - began < 5


def test_an_unwritable_output_is_refused_before_simulating(folder, monkeypatch):
    """The place is settled first: nobody waits for a simulation whose result cannot be written."""
    import simserve.run_command

    monkeypatch.setattr(simserve.run_command, "simulate", lambda *_: pytest.fail("simulated"))
    _fails_in_one_sentence(folder, _run("--out", "two.yaml"), "two.yaml: must be a folder")
    _fails_in_one_sentence(folder, _run("--out", "two.yaml/below"), "two.yaml/below: cannot write here")
    _fails_in_one_sentence(folder, _run("--out", "."), "must not be the working directory")
    _fails_in_one_sentence(folder, _run("--out", ".."), "must be empty or an earlier run's folder")


def _fails_in_one_sentence(folder, done, said):
    before = {"two.yaml", "trace.csv", "trace.csv.gz", "bomb.yaml"}
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert pd.Series([done.stderr]).str.contains(said, regex=True).all(), done.stderr
    assert set(_listing(folder)) <= before


def test_a_defect_keeps_its_traceback(folder, monkeypatch):
    """A stalled scheduler is no input error: exit code 1, and the exception goes on to whoever debugs it."""
    import simserve.run_command

    def stall(*_):
        raise SchedulerStalled("request 1 waits with nothing running")

    monkeypatch.setattr(simserve.run_command, "simulate", stall)
    done = _run()
    assert done.exit_code == 1
    assert isinstance(done.exception, SchedulerStalled)
    assert _listing(folder) == ["two.yaml"]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_behind(folder, sent, code):
    """Ctrl-C and a polite kill in the middle of a simulation: their exit code, no traceback, no file."""
    code_to_run = (
        "import time, simserve.run_command as r; from simserve.cli import main\n"
        "def simulate(*_):\n"
        "    print('running', flush=True)\n"
        "    time.sleep(60)\n"
        "r.simulate = simulate\n"
        "main()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code_to_run, "run", "two.yaml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(simserve.__file__).parents[1])},
    )
    assert child.stdout.readline() == "running\n"
    assert any(name.endswith(".partial") for name in _listing(folder))
    child.send_signal(sent)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == code
    assert "Traceback" not in errors
    assert _listing(folder) == ["two.yaml"]


def test_wrong_usage_is_exit_code_2(folder):
    """A missing argument, an option that does not exist."""
    assert _invoke("run").exit_code == 2
    assert _invoke("run", "two.yaml", "--colour").exit_code == 2


def test_schema_is_json_that_names_every_section():
    """``simserve schema`` prints a JSON schema that an editor can use."""
    schema = json.loads(_invoke("schema").stdout)
    assert schema["properties"].keys() >= {"name", "model", "step_time", "workload", "engine", "slo", "variants"}


def test_version_and_entry_point():
    """``--version``, and the console script is this module's main."""
    assert _invoke("--version").stdout == f"simserve {simserve.__version__}\n"
    (script,) = entry_points(group="console_scripts", name="simserve")
    assert script.load() is cli.main


@pytest.mark.parametrize("command", ["run", "calibrate", "chapters", "schema"])
def test_help_shows_examples(command):
    """Every command's help ends with a line that can be typed."""
    done = _invoke(command, "--help")
    assert done.exit_code == 0
    assert f"simserve {command}" in done.stdout.split("Example")[-1]


def test_calibrate_without_torch_names_the_extra(monkeypatch):
    """The base install has no torch: the error says what to install, with exit code 2."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("calibrate", "torch", "transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = _invoke("calibrate")
    assert done.exit_code == 2
    assert "pip install 'simserve[calibrate]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_chapters_has_a_flag_for_every_option():
    """Each field of ``ChaptersOptions`` but the typed command is a flag of the same name and default."""
    import dataclasses
    import inspect

    from calibrate.chapters.options import ChaptersOptions

    options = {f.name: f.default for f in dataclasses.fields(ChaptersOptions) if f.name != "command"}
    flags = {name: parameter.default for name, parameter in inspect.signature(cli.chapters).parameters.items()}
    assert flags == options


def test_calibrate_has_a_flag_for_every_option():
    """Each field of ``CalibrateOptions`` is a flag of the same name and default, but the typed command, and what a
    scenario can ask of an engine, which only ``validate --calibrate`` knows."""
    import dataclasses
    import inspect

    from calibrate.options import CalibrateOptions

    options = {f.name: f.default for f in dataclasses.fields(CalibrateOptions) if f.name not in ("command", "reach")}
    flags = {name: parameter.default for name, parameter in inspect.signature(cli.calibrate).parameters.items()}
    assert flags == options
