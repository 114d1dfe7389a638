"""``simserve validate`` from end to end: our own run scores no error, limits decide the exit code, bad input writes
nothing."""

import json
import os
from importlib.resources import files

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from simserve.validate.command import ValidateOptions
from simserve.validate.command import validate as run_validation
from simserve.validate.document import KIND, SCHEMA_VERSION
from simserve.validate.score import flat
from simserve.validate_command import EPILOG, validate
from tests.validate_builders import SCENARIO, frame, own_run, scenario_file, write_vllm

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
app.command(epilog=EPILOG)(validate)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The scenario, and our own run of it as vLLM's file, as csv, and once more 10 % slower."""
    folder = tmp_path_factory.mktemp("runs")
    scenario_file(folder)
    write_vllm(folder / "vllm-run", own_run(), {"vllm_version": "0.19.0", "engine_kwargs": {"max_num_seqs": 9}})
    own = frame(own_run())
    own.to_csv(folder / "own.csv", index=False)
    slow = own.copy()
    for name in ("first_token_s", "last_token_s", "end_s"):
        slow[name] = own.arrival_s + 1.1 * (own[name] - own.arrival_s)
    slow.to_csv(folder / "slow.csv", index=False)
    return folder


def command(home, *arguments, cwd):
    """The command as typed in ``cwd``; names of the home's files are made absolute."""
    before = os.getcwd()
    os.chdir(cwd)
    known = {path.name for path in home.iterdir()}
    try:
        words = [str(home / word) if word in known else word for word in arguments]
        return CliRunner().invoke(app, words, env={"COLUMNS": "160"})
    finally:
        os.chdir(before)


def document_of(cwd, name="served-validation"):
    return json.loads((cwd / "reports" / name / "validation.json").read_text())


@pytest.mark.parametrize("measured", ["own.csv", "vllm-run"])
def test_our_own_run_scores_no_error(home, tmp_path, measured):
    """A run that the simulation itself made: every error is 0, to the last digit."""
    done = command(home, "served.yaml", "--measured", measured, cwd=tmp_path)
    assert done.exit_code == 0, done.output
    entries = flat(document_of(tmp_path)["metrics"])
    known = {name: one for name, one in entries.items() if one["measured"] is not None}
    assert {one["error"] for one in known.values()} == {0.0}
    assert len(known) == 18 and "ttft_s.p99" in known and "makespan_s" in known


def test_static_answers_are_delivered_with_their_batch(home, tmp_path):
    """E2E of a run of ours under static batching ends with the batch on both sides: no error again."""
    engine = {**SCENARIO["engine"], "policy": "static", "max_num_batched_tokens": 2048}
    scenario = scenario_file(tmp_path, engine=engine)
    frame(own_run("static")).to_csv(tmp_path / "static.csv", index=False)
    done = command(home, str(scenario), "--measured", str(tmp_path / "static.csv"), cwd=tmp_path)
    assert done.exit_code == 0, done.output
    entries = flat(document_of(tmp_path)["metrics"])
    assert {one["error"] for one in entries.values() if one["measured"] is not None} == {0.0}


def test_the_document_is_the_agreed_one(home, tmp_path):
    """Its keys, what was known beforehand, and the folder around it; --json prints the same."""
    printed = command(home, "served.yaml", "--measured", "slow.csv", "--json", cwd=tmp_path)
    document = document_of(tmp_path)
    assert json.loads(printed.stdout) == document
    assert (document["kind"], document["schema_version"]) == (KIND, SCHEMA_VERSION) == ("simserve validate", 1)
    assert set(document["metrics"]) == {
        *("ttft_s", "tpot_s", "itl_s", "e2e_s", "throughput", "makespan_s", "mean_batch_size", "num_preemptions")
    }
    assert set(document["metrics"]["ttft_s"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert set(document["metrics"]["throughput"]) == {"output_tokens_per_s", "requests_per_s"}
    assert {"measured", "predicted", "error", "noise"} <= set(document["metrics"]["ttft_s"]["mean"])
    assert document["steps"] is None and document["engine"]["kind"] == "recorded"
    known = " ".join(document["known_beforehand"])
    assert "h100-sxm" in known and "estimated, not measured" in known and "max_num_seqs 8" in known
    folder = tmp_path / "reports" / "served-validation"
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "validation.html", "validation.json"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["kind"] == KIND and len(manifest["measured"][str(home / "slow.csv")]) == 64


def test_errors_are_those_of_the_slower_run(home, tmp_path):
    """Every latency was measured 10 % longer than predicted: errors of 1/1.1 − 1, in the table too."""
    done = command(home, "served.yaml", "--measured", "slow.csv", cwd=tmp_path)
    metrics = document_of(tmp_path)["metrics"]
    for latency in ("ttft_s", "tpot_s", "e2e_s"):
        for one in metrics[latency].values():
            assert one["error"] == pytest.approx(1 / 1.1 - 1, abs=1e-6)
    lines = {line.strip().split("  ")[0]: line for line in done.stdout.splitlines()}
    assert "−9.1" in lines["TTFT, mean"] and "off" in lines["TTFT, mean"]
    assert "Mean absolute error 9.1" in done.stdout and "its noise is not known" in done.stdout
    assert "ITL, mean" in lines and "known beforehand" in done.stdout


def test_several_runs_have_noise_and_the_error_is_of_their_mean(home, tmp_path):
    """x and 1.1 x: mean 1.05 x, noise 0.05/1.05, and a prediction of x lies exactly on the noise's edge."""
    done = command(home, "served.yaml", "--measured", "own.csv", "--measured", "slow.csv", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    one = document_of(tmp_path)["metrics"]["ttft_s"]["mean"]
    assert one["noise"] == pytest.approx(0.05 / 1.05) and one["error"] == pytest.approx(1 / 1.05 - 1)
    assert one["measured_range"][1] == pytest.approx(1.1 * one["measured_range"][0])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--max-error", "0.05"), 1),
        (("--max-error", "0.10"), 0),
        (("--max-error", "0.08", "--metric", "throughput.requests_per_s"), 0),
        (("--max-error", "0.08", "--metric", "throughput.requests_per_s", "--metric", "e2e_s"), 1),
    ],
)
def test_the_limit_decides_the_exit_code(home, tmp_path, arguments, code):
    """9 % off is beyond 5 %, not beyond 10 %; the results are written either way, and name what is beyond."""
    done = command(home, "served.yaml", "--measured", "slow.csv", *arguments, cwd=tmp_path)
    assert done.exit_code == code, done.output
    limit = document_of(tmp_path)["limit"]
    assert bool(limit["exceeding"]) == bool(code) and limit["max_error"] == float(arguments[1])
    if code:
        assert f"over the limit of {arguments[1]}: " in done.stderr and "e2e_s.mean" in done.stderr
        assert "over the limit" in done.stdout


def test_settings_that_differ_are_noted(home, tmp_path):
    """The run says 9 slots, the scenario 8: a note, and a badge on the page."""
    done = command(home, "served.yaml", "--measured", "vllm-run", cwd=tmp_path)
    assert "made with engine.max_num_seqs 9, and the scenario says 8" in done.stdout
    page = (tmp_path / "reports" / "served-validation" / "validation.html").read_text()
    assert "other settings" in page


def test_recorded_requests_need_no_workload_of_theirs(home, tmp_path):
    """Other lengths in the scenario: refused, unless the run's own are asked for; then there is no error again."""
    change = ("--set", "workload.prompt_tokens={fixed: 7}")
    refused = command(home, "served.yaml", "--measured", "own.csv", *change, cwd=tmp_path)
    assert refused.exit_code == 2 and "request 1 must have the scenario's 7 prompt tokens" in refused.stderr
    done = command(home, "served.yaml", "--measured", "own.csv", *change, "--requests", "recorded", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    entries = flat(document_of(tmp_path)["metrics"])
    assert entries["e2e_s.p99"]["error"] == 0.0


def test_unfinished_requests_load_the_engine_and_are_not_counted(home, tmp_path):
    """A client that was cut off leaves its row; the others' figures are compared on both sides."""
    cut = frame(own_run())
    cut.loc[[2, 9], ["last_token_s", "end_s"]] = np.nan
    cut.to_csv(tmp_path / "cut.csv", index=False)
    done = command(home, "served.yaml", "--measured", str(tmp_path / "cut.csv"), cwd=tmp_path)
    assert done.exit_code == 0 and "2 of 40 requests have no last token" in done.stdout
    assert flat(document_of(tmp_path)["metrics"])["e2e_s.mean"]["error"] == 0.0


def test_a_profile_s_calibration_is_drawn_and_shown(home, tmp_path):
    """Step times of a profile: each prediction lies among those that other calibrations might have given."""
    changes = ("--set", "model=25m", "--set", "step_time={profile: 25m-cpu-fp32-transformers}", "--draws", "5")
    done = command(home, "served.yaml", "--measured", "own.csv", *changes, cwd=tmp_path)
    assert done.exit_code == 0, done.output
    one = document_of(tmp_path)["metrics"]["e2e_s"]["mean"]
    low, high = one["predicted_range"]
    assert 0.5 * one["predicted"] < low < high < 2 * one["predicted"]
    assert any("±" in line for line in done.stdout.splitlines() if "E2E, mean" in line)


@pytest.mark.parametrize(
    "its_own", ["variants={only: {}}", "variants={only: {step_time: {roofline: laptop-cpu, dtype: fp32}}}"]
)
def test_a_profile_made_first_is_what_the_simulation_uses(home, tmp_path, its_own):
    """Calibrated before and apart from the runs, whatever step times the variant names itself; the profile stays beside
    the folder, under its name."""
    shipped = files("simserve.step_time") / "profiles" / "25m-cpu-fp32.json"
    asked = []

    def calibrate(scenario, path, console):
        asked.append(scenario.name)
        path.write_text(shipped.read_text())

    options = ValidateOptions(
        home / "served.yaml",
        ("model=25m", its_own),
        measured=(home / "own.csv",),
        calibrate=calibrate,
        out=tmp_path / "out",
        num_draws=0,
        quiet=True,
    )
    run_validation(options)
    document = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert asked == ["served"] and (tmp_path / "out-profile.json").exists()
    assert document["known_beforehand"][0].startswith("step times: 25m-cpu-fp32 on ")


def test_requests_that_the_simulation_rejects_are_noted(home, tmp_path):
    """Longer than the scenario's limit: with the reason, and without a figure."""
    done = command(home, "served.yaml", "--measured", "own.csv", "--set", "engine.max_model_len=400", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    assert "requests do not finish in the simulation (prompt + output of" in done.stdout


VARIANTS = "variants={slow: {engine: {max_num_seqs: 4}}, fast: {}}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "give exactly one of --measured, --engine and --url (got none)"),
        (("--measured", "own.csv", "--url", "http://127.0.0.1:1"), "(got several)"),
        (("--measured", "none.csv"), "none.csv: no such file or folder"),
        (("--measured", "own.csv", "--format", "csv"), "--format: must be one of auto"),
        (("--measured", "own.csv", "--max-error", "-1"), "--max-error: must be ≥ 0"),
        (("--measured", "own.csv", "--metric", "ttft_s"), "--metric: needs --max-error"),
        (("--measured", "own.csv", "--max-error", "1", "--metric", "ttft"), "--metric: must be a figure"),
        (("--measured", "own.csv", "--variant", "static"), "--variant: must be a variant of served.yaml"),
        (("--measured", "own.csv", "--set", VARIANTS), "has several variants (slow, fast); name one by --variant"),
        (("--measured", "own.csv", "--draws", "1001"), "--draws: must be from 0 to 1,000"),
        (("--measured", "own.csv", "--calibrate"), "--calibrate: belongs to --engine"),
        (("--measured", "own.csv", "--served-model", "x"), "--served-model: belongs to --url"),
        (("--measured", "own.csv", "--api-key", "x"), "--api-key: belongs to --url"),
        (("--engine", "vllm"), "--engine-python: must name the Python that has vLLM"),
        (("--engine", "transformers", "--engine-python", "x"), "--engine-python: is for --engine vllm alone"),
        (
            ("--measured", "own.csv", "--set", "workload.num_requests=39"),
            "must have as many requests as the scenario's",
        ),
        (("--measured", "own.csv", "--set", "engine.kv_cache.num_blocks=1"), "must be able to serve some request"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(home, tmp_path, arguments, expected):
    """Exit code 2; no folder appears, not even its parents."""
    done = command(home, "served.yaml", *arguments, cwd=tmp_path)
    assert done.exit_code == 2 and done.stdout == "", done.output
    assert expected in done.stderr and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_several_problems_are_all_named(home, tmp_path):
    """Screening: a line for each, then the error; nothing is written."""
    bad = frame(own_run())
    bad.loc[4, "first_token_s"] = bad.loc[4, "arrival_s"] - 1
    bad.loc[6, ["last_token_s", "end_s"]] = bad.loc[6, "first_token_s"] - 1
    bad.to_csv(tmp_path / "bad.csv", index=False)
    done = command(home, "served.yaml", "--measured", str(tmp_path / "bad.csv"), cwd=tmp_path)
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["problem", "problem", "error"]
    assert "row 5 must have its first token after its arrival" in lines[0]
    assert "row 7 must have its last token after its first" in lines[1]
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


def test_an_earlier_validation_is_replaced_and_nothing_else(home, tmp_path):
    """The same folder again is fine; one with a file of theirs is not."""
    for _ in range(2):
        assert command(home, "served.yaml", "--measured", "own.csv", "--out", "mine", "-q", cwd=tmp_path).exit_code == 0
    (tmp_path / "mine" / "thesis.tex").write_text("")
    refused = command(home, "served.yaml", "--measured", "own.csv", "--out", "mine", cwd=tmp_path)
    assert refused.exit_code == 2 and "choose another --out" in refused.stderr


def test_the_same_inputs_give_the_same_bytes(home, tmp_path):
    """validation.json and nothing in the page but its provenance depend on when it was made."""
    for out in ("a", "b"):
        command(home, "served.yaml", "--measured", "slow.csv", "--out", out, "-q", cwd=tmp_path)
    assert (tmp_path / "a" / "validation.json").read_bytes() == (tmp_path / "b" / "validation.json").read_bytes()


def test_help_shows_examples():
    """The epilog holds commands to copy."""
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "140"}).stdout
    assert "--measured" in text and "--max-error" in text and "simserve validate chat.yaml --url" in text


def test_sessions_are_refused(home, tmp_path):
    """A turn that waits for the simulation's answers has no row in a recorded run to be held against."""
    header = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s\n"
    (tmp_path / "turns.csv").write_text(header + "0,10,2,a,\n,10,2,a,2\n")
    result = command(home, "served.yaml", "--set", "workload={trace: turns.csv}", "--measured", "own.csv", cwd=tmp_path)
    assert result.exit_code == 2
    assert "workload.trace: must have requests with times of their own for a validation" in result.output
