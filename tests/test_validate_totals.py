"""Runs of which only sums and quantiles were kept: vLLM's and guidellm's own figures against a simulation's."""

import json

import pytest
import typer
from typer.testing import CliRunner

from simserve.records import FINISHED
from simserve.validate.observed import figures, observed_records
from simserve.validate.score import flat
from simserve.validate_command import validate
from tests.benchmark_files import vllm_result
from tests.validate_builders import own_run, scenario_file

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(validate)
DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")


def own_totals(factor=1.0, **changes):
    """What `vllm bench serve` would have saved of our own run without --save-detailed, times ``factor``."""
    ours = observed_records(own_run(), 1.0)
    told = figures(ours, own_run().requests.status == FINISHED)
    known = {"num_prompts": 40, "completed": 40, "duration": factor * told["makespan_s"]}
    known |= {"output_throughput": told["throughput.output_tokens_per_s"] / factor}
    known |= {"request_throughput": told["throughput.requests_per_s"] / factor}
    for name in ("ttft", "tpot", "itl"):
        known |= {f"{q}_{name}_ms": 1e3 * factor * told[f"{name}_s.{q}"] for q in ("mean", "p90", "p99")}
        known[f"median_{name}_ms"] = 1e3 * factor * told[f"{name}_s.p50"]
    whole = {**vllm_result(), **known, **changes}
    return {key: value for key, value in whole.items() if key not in DETAILS}


def run(folder, *files, arguments=()):
    words = [str(scenario_file(folder)), "--out", str(folder / "out"), *arguments]
    for i, content in enumerate(files):
        (folder / f"bench-{i}.json").write_text(json.dumps(content))
        words += ["--measured", str(folder / f"bench-{i}.json")]
    return CliRunner().invoke(app, words, env={"COLUMNS": "160"})


def document_of(folder):
    return json.loads((folder / "out" / "validation.json").read_text())


def test_our_own_totals_score_no_error(tmp_path):
    """Whatever the file tells has no error; what it lacks is null, and named."""
    done = run(tmp_path, own_totals())
    assert done.exit_code == 0, done.output
    document = document_of(tmp_path)
    entries = flat(document["metrics"])
    known = {name: one for name, one in entries.items() if one["measured"] is not None}
    assert all(one["error"] == pytest.approx(0, abs=1e-9) for one in known.values()) and len(known) == 15
    assert entries["e2e_s.mean"]["measured"] is None and entries["e2e_s.mean"]["predicted"] > 0
    assert document["engine"]["format"] == "vllm-bench" and document["steps"] is None
    assert any("aggregates only" in note for note in document["notes"])
    assert any("e2e_s not told" in note for note in document["notes"])
    assert any("the run kept none" in text for text in document["known_beforehand"])
    page = (tmp_path / "out" / "validation.html").read_text()
    assert '<section id="errors"' in page and '<section id="latency"' not in page


def test_several_totals_have_noise_and_a_limit(tmp_path):
    """Two runs, one 10 % slower: noise 0.05/1.05; beyond a limit of 1 % and the noise is nothing of them."""
    done = run(tmp_path, own_totals(), own_totals(1.1), arguments=("--max-error", "0.01"))
    assert done.exit_code == 0, done.output
    one = document_of(tmp_path)["metrics"]["ttft_s"]["mean"]
    assert one["noise"] == pytest.approx(0.05 / 1.05) and one["error"] == pytest.approx(1 / 1.05 - 1)
    assert run(tmp_path, own_totals(1.2), arguments=("--max-error", "0.01")).exit_code == 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ((own_totals(num_prompts=39),), "must have as many requests as the scenario's workload, 40 (got 39)"),
        ((own_totals(completed=0),), "must have a request that finished"),
        ((own_totals(), vllm_result()), "must be files that all keep their requests, or none of them"),
    ],
)
def test_totals_of_other_runs_are_refused(tmp_path, files, expected):
    """One sentence, nothing written."""
    done = run(tmp_path, *files)
    assert done.exit_code == 2 and expected in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_that_keeps_its_requests_is_scored_by_them(tmp_path):
    """The three requests of a detailed file, taken as they are."""
    done = run(tmp_path, vllm_result(), arguments=("--requests", "recorded"))
    assert done.exit_code == 0, done.output
    document = document_of(tmp_path)
    assert document["metrics"]["ttft_s"]["mean"]["measured"] == pytest.approx((0.25 + 0.5 + 0.125) / 3)
    assert document["metrics"]["e2e_s"]["mean"]["measured"] is not None
