"""`simserve init`: a file that `simserve run` takes at once, never over another without --force."""

import pytest
import typer
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simserve import init_command
from simserve.cli import app as simserve
from simserve.vllm_flags.document import comment, default_workload
from simserve.vllm_flags.quoting import quoted
from tests.vllm_flag_builders import SERVE

RUNNER = CliRunner()
APP = typer.Typer()
APP.command(epilog=init_command.EPILOG)(init_command.init)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _init(*arguments):
    return RUNNER.invoke(APP, arguments)


def _runs(path):
    return RUNNER.invoke(simserve, ["run", str(path), "--no-report", "--set", "workload.num_requests=5"])


def test_what_it_writes_runs_at_once(folder):
    """From flags to a result in two commands."""
    done = _init("--from-vllm", f"{SERVE} --max-num-seqs 8 --max-num-batched-tokens 512")
    assert done.exit_code == 0, done.output
    assert "wrote scenario.yaml; next: simserve run scenario.yaml" in done.stdout
    ran = _runs(folder / "scenario.yaml")
    assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize(
    "options",
    [(), ("--hardware", "a100-sxm"), ("--profile", "25m-cpu-fp32"), ("--profile", "h200-llama-3.1-8b-fp8-vllm")],
)
def test_without_a_command_it_writes_a_starter_that_runs(folder, options):
    """For a datasheet's hardware or a measured profile."""
    done = _init(*options, "--out", "sub.yaml")
    assert done.exit_code == 0, done.output
    ran = _runs(folder / "sub.yaml")
    assert ran.exit_code == 0, ran.output
    assert set(yaml.safe_load((folder / "sub.yaml").read_text())["variants"]) == {"as-above", "static"}


def test_a_file_is_not_overwritten_without_force(folder):
    """Exit code 2, one sentence, the file as it was; and --force replaces it."""
    (folder / "scenario.yaml").write_text("mine\n")
    refused = _init()
    assert refused.exit_code == 2
    assert refused.stderr == "error: scenario.yaml: exists already; give --force to replace it, or another --out\n"
    assert (folder / "scenario.yaml").read_text() == "mine\n"
    assert _init("--force").exit_code == 0
    assert (folder / "scenario.yaml").read_text() != "mine\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--from-vllm", "ls"), "--from-vllm: must start a vLLM server"),
        (("--from-vllm", f"{SERVE} --max-num-sequences 8"), "--max-num-sequences: is not a flag of vllm serve 0.32"),
        (
            ("--from-vllm", SERVE, "--hardware", "h1000"),
            "--hardware: unknown hardware 'h1000'; did you mean 'h100-sxm'?",
        ),
        (("--from-vllm", SERVE, "--profile", "none-such"), "profile: 'none-such' is neither"),
        (("--from-vllm", SERVE, "--profile", "25m-cpu-fp32", "--kv-cache-tokens", "4096"), "25m-cpu-fp32"),
        (("--from-vllm", SERVE, "--kv-cache-tokens", "16"), "--kv-cache-tokens: must hold two blocks of 16 tokens"),
        (
            ("--from-vllm", f"{SERVE} --max-num-batched-tokens 8 --max-num-seqs 9"),
            "--max-num-seqs: must be ≤ max_num_batched_tokens 8",
        ),
        (("--hardware", "h1000"), "--hardware: unknown hardware"),
        (("--out", "nowhere/scenario.yaml"), "nowhere/scenario.yaml: cannot be written (no such file or directory)"),
    ],
)
def test_wrong_input_ends_in_one_sentence_and_writes_nothing(folder, arguments, sentence):
    """Exit code 2; no file, not even a part of one."""
    refused = _init(*arguments)
    assert refused.exit_code == 2, refused.output
    assert refused.stderr.startswith(f"error: {sentence}")
    assert refused.stderr.count("\n") == 1
    assert list(folder.iterdir()) == []


def test_what_was_not_translated_is_said_here_and_in_the_file(folder):
    """The same words on standard error and in the comments, and none of the immaterial flags' values."""
    done = _init("--from-vllm", f"{SERVE} --enforce-eager --port 4321 --max-num-seqs 8", "--hardware", "h100-sxm")
    text = (folder / "scenario.yaml").read_text()
    for part in ("--enforce-eager: steps without CUDA graphs are slower", "--port"):
        assert part in done.stderr
        assert part in text
    assert "4321" not in done.output + text


def test_comments_say_where_each_value_comes_from(folder):
    """A given flag, a default with the file of vLLM's source, and an estimate with its sum."""
    _init("--from-vllm", f"{SERVE} --max-num-seqs 8", "--hardware", "h100-sxm", "--vllm-version", "0.19")
    text = (folder / "scenario.yaml").read_text()
    assert "max_num_seqs: 8  # --max-num-seqs\n" in text
    assert "vLLM 0.19's default for a GPU of 70 GiB or more that is no A100 (engine/arg_utils.py)" in text
    assert "block_size: 16  # vLLM's default on most GPUs (config/cache.py)" in text
    assert "0.9 is granted" in text.replace("\n# ", " ")
    assert '"GPU KV cache size' in text


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_a_comment_stays_one(text):
    """Whatever a flag's value holds, each line of a comment begins with #, so that no YAML can be slipped in."""
    lines = comment(text).splitlines()
    assert all(line.startswith("# ") for line in lines)


@given(st.integers(2, 200_000))
def test_the_default_workload_fits_every_context(longest):
    """The longest prompt and the longest answer fit max_model_len together."""
    workload = yaml.safe_load(default_workload(longest))["workload"]
    prompt, answer = (workload[key]["lognormal"]["max"] for key in ("prompt_tokens", "output_tokens"))
    assert 2 <= prompt + answer <= longest


@given(st.text(min_size=1, max_size=50))
def test_a_quoted_text_is_that_text_to_yaml(text):
    """Model and profile names may be any path."""
    assume(not any(0xD800 <= ord(letter) <= 0xDFFF for letter in text))
    assert yaml.safe_load(f"{{key: {quoted(text)}}}") == {"key": text}
