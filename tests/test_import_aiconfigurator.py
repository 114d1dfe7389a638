"""AIConfigurator's database to a profile: a fake child, the real child over a fake package, and the real package."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrate.importers import aiconfigurator
from calibrate.importers.aiconfigurator import DatabaseQuery, read_aiconfigurator
from calibrate.importers.formats import import_profile
from calibrate.importers.reading import ImportOptions
from calibrate.screening.steps import beyond_the_chip
from simserve.cli import app
from simserve.errors import InputError, ProfileError
from simserve.model_spec import load_model_spec
from simserve.request import Batch
from simserve.step_time.hardware import load_hardware
from simserve.step_time.profile import ProfileStepTime

SPEC = load_model_spec("llama-3.1-8b")
QUERY = DatabaseQuery("h200_sxm", "vllm")
OPTIONS = ImportOptions("some", "llama-3.1-8b", dtype="fp8", date="2026-01-01")
REAL = os.environ.get("SIMSERVE_AICONFIGURATOR_PYTHON") or (
    sys.executable if importlib.util.find_spec("aiconfigurator_core") else None
)

# A step takes 1 ms of measured kernels, 1 µs a new token, and 1 ns of formulas per new and cached token.
CHILD = """
import json, sys
asked = json.load(sys.stdin)
def step(new, context, tokens):
    return {"silicon": 1 + 1e-3 * new, "empirical": 1e-6 * tokens}
print(json.dumps({
    "version": "0.0", "backend_version": "9.9", "memory_bytes": MEMORY,
    "prefill": [step(n, c, n + c) for n, c in asked["prefill"]],
    "decode": [step(b, c, b * (c + 1)) for b, c in asked["decode"]],
}))
print(json.dumps(asked), file=open(__file__ + ".asked", "w"))
"""

# What the child asks of the package, answered so that each argument can be told from the sum.
PACKAGE = """
class EngineHandle:
    @classmethod
    def compile(cls, folder, system, backend, **options):
        made = cls()
        config = __import__("json").load(open(folder + "/config.json"))
        assert config["architectures"] == ["LlamaForCausalLM"] and config["num_hidden_layers"] == 32
        assert options == dict(backend_version="9.9", tp_size=2, gemm_quant_mode="fp8", kvcache_quant_mode="bfloat16",
                               fmha_quant_mode="bfloat16"), options
        print("a banner on stdout")
        return made
    def run_static_per_op(self, batch_size, isl, osl, mode, prefix=0):
        if batch_size > 100:
            raise ValueError("no data for\\n this batch")
        operators = [("gemm", isl - prefix, 0.0, "silicon"), ("norm", 0.5, 0.0, "empirical"), ("g", 1, 0, "silicon")]
        return (operators, []) if mode == "static_ctx" else ([], [("a", isl / batch_size, 0.0, "silicon")])
"""
DATABASE = """
def get_supported_databases(): return {"h200_sxm": {"vllm": ["9.9"]}}
def get_latest_database_version(system, backend): return "9.9"
class Database:
    version, system_spec = "9.9", {"gpu": {"mem_capacity": 141e9}}
def get_database(system, backend, version): return Database() if version == "9.9" else None
"""


def fake_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> Path:
    script = tmp_path / "child.py"
    script.write_text(code)
    monkeypatch.setattr(aiconfigurator, "CHILD_SCRIPT", script)
    return script


def fake_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool = False) -> None:
    """A package of the name on the path of the child alone."""
    sdk = tmp_path / "aiconfigurator_core" / "sdk"
    sdk.mkdir(parents=True)
    (sdk.parent / "__init__.py").write_text("raise ImportError('no wheel for this machine')" if broken else "")
    (sdk / "__init__.py").write_text("")
    (sdk / "engine.py").write_text(PACKAGE)
    (sdk / "perf_database.py").write_text(DATABASE)
    facts = tmp_path / "aiconfigurator_core-0.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 0.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_step_is_the_sum_of_its_operators(tmp_path, monkeypatch):
    """The profile returns the composed steps exactly, and says whose they are."""
    fake_child(tmp_path, monkeypatch, CHILD.replace("MEMORY", "141e9"))
    profile, _ = import_profile("aiconfigurator", [], OPTIONS, QUERY)
    step_time = ProfileStepTime(profile)
    for batch, context in ((1, 256), (64, 2048), (256, 1024)):
        seconds = (1 + 1e-3 * batch + 1e-6 * batch * (context + 1)) / 1e3
        decode = Batch(num_decodes=batch, decode_context_tokens=batch * context)
        assert step_time.ramp(decode, 0).first_s == pytest.approx(seconds)
    made = profile.provenance
    assert (made.origin, made.device_name, made.dtype, made.tensor_parallel) == ("imported", "h200_sxm", "fp8", 1)
    assert made.source == "AIConfigurator 0.0 (Apache-2.0), database of h200_sxm, vllm 9.9"
    assert "0% measured kernels completed by formulas" in " ".join(made.notes)


def test_the_child_is_asked_for_the_grid_of_a_gpu(tmp_path, monkeypatch):
    """The dimensions are ours, so any dense model can be asked for; cache and attention stay in 16 bits."""
    script = fake_child(tmp_path, monkeypatch, CHILD.replace("MEMORY", "141e9"))
    read_aiconfigurator(QUERY, ImportOptions("x", "mistral-7b", dtype="int8", tensor_parallel=4))
    asked = json.loads(Path(f"{script}.asked").read_text())
    assert asked["config"]["architectures"] == ["LlamaForCausalLM"]
    assert asked["config"]["vocab_size"] == 32_000
    assert (asked["tensor_parallel"], asked["gemm"], asked["attention"]) == (4, "int8_wo", "bfloat16")
    assert [8192, 16384] in asked["prefill"] and [256, 16384] in asked["decode"]


@pytest.mark.parametrize("parallel", [1, 2])
def test_steps_that_do_not_fit_the_memory_are_left_out(tmp_path, monkeypatch, parallel):
    """With room for 10,000 tokens beside the weights, over all devices, no step ends with more in the cache."""
    room = (SPEC.weight_bytes("fp8") + 10_000 * SPEC.kv_bytes_per_token("bf16")) / parallel
    fake_child(tmp_path, monkeypatch, CHILD.replace("MEMORY", str(room)))
    options = ImportOptions("x", "llama-3.1-8b", dtype="fp8", tensor_parallel=parallel)
    reading = read_aiconfigurator(QUERY, options)
    held = {
        p.num_context_tokens + p.num_new_tokens if p.phase == "prefill" else p.batch_size * (p.num_context_tokens + 1)
        for p in reading.points
    }
    assert max(held) <= 10_000
    assert {8192, 4096 + 4096, 32 * 257} <= held
    dropped = 14 * 5 + 13 * 7 - len(reading.points)
    assert f"{dropped} steps of the grid are left out" in " ".join(reading.notes)
    with pytest.raises(ProfileError, match=r"prefill: must have steps to import .*none fits the devices' memory"):
        fake_child(tmp_path, monkeypatch, CHILD.replace("MEMORY", "8e9"))
        read_aiconfigurator(QUERY, OPTIONS)


def test_the_child_composes_with_the_package_s_own_engine(tmp_path, monkeypatch):
    """A prefill's ``isl`` holds its prefix; a decode of batch b over c is the step after prompts of c; steps that the
    database refuses are left out and counted; what the package prints does not disturb."""
    fake_package(tmp_path, monkeypatch)
    options = ImportOptions("x", "llama-3.1-8b", dtype="fp8", tensor_parallel=2)
    reading = read_aiconfigurator(QUERY, options)
    seconds = {(p.phase, p.batch_size, p.num_new_tokens, p.num_context_tokens): p.seconds for p in reading.points}
    assert seconds["prefill", 1, 96, 4096] == pytest.approx((96 + 0.5 + 1) / 1e3)
    assert seconds["decode", 64, 1, 4096] == pytest.approx(64 / 1e3)
    assert max(p.batch_size for p in reading.points) == 96
    assert "as the database does not reach them" in " ".join(reading.notes)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (DatabaseQuery("h900", "vllm"), r"its database has h200_sxm \(vllm\) \(got 'h900' under 'vllm'\)"),
        (DatabaseQuery("h200_sxm", "trtllm"), "got 'h200_sxm' under 'trtllm'"),
        (DatabaseQuery("h200_sxm", "vllm", "1"), r"backend_version: must be one of 9\.9 \(got '1'\)"),
    ],
)
def test_what_the_database_lacks_is_said_with_what_it_has(tmp_path, monkeypatch, query, message):
    """So that the next command can be right."""
    fake_package(tmp_path, monkeypatch)
    with pytest.raises(ProfileError, match=message):
        read_aiconfigurator(query, OPTIONS)


def test_a_python_without_the_package_names_the_remedy(tmp_path, monkeypatch):
    """One sentence with what to install."""
    fake_package(tmp_path, monkeypatch, broken=True)
    with pytest.raises(ProfileError, match=r"no wheel.*pip install aiconfigurator, or name the Python.*--python"):
        read_aiconfigurator(QUERY, OPTIONS)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('bad luck')", r"ended with exit code 1 and no answer \(bad luck\)"),
        ("print('[1]')", r"ended with exit code 0 and no answer \(nothing\)"),
        ('print(\'{"error": "ValueError: it will not"}\')', "aiconfigurator: ValueError: it will not"),
        ("import time; time.sleep(60)", "must answer within 1 s"),
    ],
)
def test_a_child_that_fails_is_one_sentence(tmp_path, monkeypatch, code, message):
    """Whatever happened there."""
    monkeypatch.setattr(aiconfigurator, "TIMEOUT_S", 60.0 if "sleep" not in code else 1.0)
    fake_child(tmp_path, monkeypatch, code)
    with pytest.raises(InputError, match=message) as caught:
        read_aiconfigurator(QUERY, OPTIONS)
    assert "\n" not in str(caught.value)


def test_what_must_be_given_is_asked_for():
    """Nothing is guessed, and no child is started."""
    with pytest.raises(ProfileError, match="system: must be given; add --system"):
        read_aiconfigurator(DatabaseQuery(), OPTIONS)
    with pytest.raises(ProfileError, match="dtype: must be given; add --dtype"):
        read_aiconfigurator(QUERY, ImportOptions("x", "llama-3.1-8b"))
    with pytest.raises(ProfileError, match=r"dtype: must be one of bf16, fp8, int8 \(got 'fp32'\)"):
        read_aiconfigurator(QUERY, ImportOptions("x", "llama-3.1-8b", dtype="fp32"))
    with pytest.raises(ProfileError, match="/no/python: cannot be run"):
        read_aiconfigurator(DatabaseQuery("h200_sxm", python=Path("/no/python")), OPTIONS)


def test_the_command_takes_a_database_or_files(tmp_path, monkeypatch):
    """Options of one kind of source are not silently dropped by the other."""
    fake_child(tmp_path, monkeypatch, CHILD.replace("MEMORY", "141e9"))
    asked = ["profile", "import", "aiconfigurator", "--model", "llama-3.1-8b", "--dtype", "fp8", "--system", "h200_sxm"]
    out = tmp_path / "made.json"
    done = CliRunner().invoke(app, [*asked, "--backend", "vllm", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["provenance"]["source"].endswith("vllm 9.9")
    done = CliRunner().invoke(app, [*asked, "some.csv"])
    assert done.exit_code == 2 and "must be given no file" in done.stderr
    done = CliRunner().invoke(app, ["profile", "import", "step-csv", "some.csv", "--system", "h200_sxm"])
    assert done.exit_code == 2 and "must be given files alone" in done.stderr


@pytest.mark.skipif(
    REAL is None,  # its dependencies are not those of `make test`, which therefore leaves it out
    reason="reads AIConfigurator's database: pip install '.[aiconfigurator]', or name by "
    "SIMSERVE_AICONFIGURATOR_PYTHON a Python that has it",
)
@pytest.mark.parametrize("backend", ["trtllm", "vllm"])
def test_real_steps_keep_to_what_the_chip_can_do(backend):
    """No step needs more FLOP/s or bytes/s than the H200's datasheet, a decode of one sequence reads the weights at
    more than a third of the bandwidth, and two devices are faster than one and no more than twice as fast."""
    assert REAL is not None
    query = DatabaseQuery("h200_sxm", backend, python=Path(REAL))
    one, two = (read_aiconfigurator(query, ImportOptions("x", "llama-3.1-8b", dtype="fp8", tensor_parallel=n))
                for n in (1, 2))  # fmt: skip
    hardware = load_hardware("h200-sxm")
    assert list(beyond_the_chip(one.points, SPEC, hardware, "fp8", 1)) == []
    first = next(p for p in one.points if (p.phase, p.batch_size, p.num_context_tokens) == ("decode", 1, 256))
    least = (SPEC.matmul_parameters + SPEC.lm_head_parameters) / hardware.bandwidth_bytes_per_s
    assert least < first.seconds < 3 * least
    split = {(p.phase, p.batch_size, p.num_new_tokens, p.num_context_tokens): p.seconds for p in two.points}
    for p in one.points:
        if p.phase == "decode" and p.batch_size * p.num_context_tokens >= 100_000:
            assert 1 < p.seconds / split[p.phase, p.batch_size, p.num_new_tokens, p.num_context_tokens] < 2
