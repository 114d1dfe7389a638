"""The protocol with an engine in another interpreter: children that behave, misbehave and die; and real vLLM."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.command import calibrate
from calibrate.engines import vllm_engine
from calibrate.engines.child import Child
from calibrate.engines.engine import EngineSteps
from calibrate.engines.vllm_engine import CHILD_SCRIPT, VllmEngine, VllmOptions
from calibrate.errors import CalibrationError
from calibrate.grid import Point
from calibrate.options import CalibrateOptions
from simserve.step_time.profile_schema import Profile, load_profile

HERE = Path(sys.executable)
VLLM_PYTHON = os.environ.get("SIMSERVE_VLLM_PYTHON")
OPTIONS = VllmOptions(dtype="float32", threads=1, seed=0, kv_bytes_per_token=512)

# Takes what it is asked for, and says that a step took a microsecond per token in wall time, half of that in CPU time.
GOOD = """
import json, sys
facts = dict(source="a fake 1.0", attention="NONE", kv_cache="paged", kv_bytes_per_token=512.0, device="cpu",
             torch_version="1", transformers_version="2", python_version="3")
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "start":
        config = json.load(open(asked["model"] + "/config.json"))
        print("a banner", file=sys.stderr)
        answer = {**facts, "architecture": config["architectures"][0]}
    elif asked["do"] == "prepare":
        sequences, answer = asked["sequences"], {}
    else:
        tokens = sum(new for new, _ in sequences)
        answer = {"wall_s": 1e-6 * tokens, "cpu_s": 5e-7 * tokens, "sequences": sequences}
        sequences = [[1, cached + new] for new, cached in sequences]
    print(json.dumps(answer), flush=True)
"""


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str = GOOD) -> VllmEngine:
    """The engine of vLLM with another child."""
    script = tmp_path / "child.py"
    script.write_text(code)
    monkeypatch.setattr(vllm_engine, "CHILD_SCRIPT", script)
    return VllmEngine(HERE, {"architectures": ["Any"]}, OPTIONS)


def test_the_child_s_own_clocks_time_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the parent spends on the pipe is not the step's: both clocks are the child's, to the bit."""
    engine = fake(tmp_path, monkeypatch)
    facts = engine.start([((1, 5),) * 4])
    assert (facts.source, facts.attention, facts.kv_bytes_per_token) == ("a fake 1.0", "NONE", 512)
    steps = EngineSteps(engine)
    steps.prepare(Point("mixed", 1, 7, 3, num_decodes=2, num_decode_context_tokens=9))
    timing = steps.timer(steps.step)
    assert timing.wall_s == 1e-6 * 9 and timing.cpu_s == 5e-7 * 9
    assert sorted(engine.computed()) == [(1, 9), (1, 9), (7, 3)]
    engine.stop()
    engine.stop()  # twice does no harm


def test_the_child_is_gone_afterwards(tmp_path: Path) -> None:
    """A child ends when its stdin does, and one that will not is killed."""
    script = tmp_path / "stubborn.py"
    script.write_text("import time\ntime.sleep(0.3)\n")
    child = Child(HERE, script, {})
    child.stop()
    assert child._process.returncode is not None


def test_the_child_s_cpu_time_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of the engine must not look like a busy neighbour: its seconds count as our own."""
    spin = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass\n"
    engine = fake(tmp_path, monkeypatch, GOOD.replace("import json, sys", f"import json, sys\n{spin}"))
    engine.start([((1, 5),)])
    own = time.process_time()
    reading = engine.read_machine()
    engine.stop()
    if reading is None:
        pytest.skip("this system does not tell how busy it is")
    assert reading.own_s - own > 0.35  # ticks of 10 ms


BROKEN = {
    "dies at once": (
        "import sys; print('no luck', file=sys.stderr); sys.exit(7)",
        r"ended with exit code 7 \(no luck\)",
    ),
    "says what failed": ('input(); print(\'{"error": "too large"}\')', "too large"),
    "answers no JSON": ("input(); print('hello')", "must answer with a JSON object .got 'hello'"),
    "answers a list": ("input(); print('[]')", "must answer with a JSON object"),
    "leaves a fact out": (GOOD.replace("source=", "sauce="), "must tell its source"),
    "runs on a GPU": (GOOD.replace('device="cpu"', 'device="cuda"'), "timed on a CPU .got cuda"),
    "has half bytes": (GOOD.replace("512.0", "512.5"), "must be whole .got 512.5"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_child_that_misbehaves_is_one_sentence(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named interpreter, what went wrong, no traceback, no hang."""
    code, words = BROKEN[case]
    engine = fake(tmp_path, monkeypatch, code)
    with pytest.raises(CalibrationError, match=words) as caught:
        engine.start([((1, 5),)])
    engine.stop()
    assert "\n" not in str(caught.value)


def test_an_interpreter_without_vllm_is_one_sentence() -> None:
    """The real child script says so itself."""
    missing = subprocess.run([HERE, "-c", "import vllm"], capture_output=True, check=False).returncode
    if missing == 0:
        pytest.skip("this interpreter has vLLM")
    engine = VllmEngine(HERE, {}, OPTIONS)
    with pytest.raises(CalibrationError, match=r"vLLM cannot be imported there .*No module named 'vllm'"):
        engine.start([((1, 5),)])
    engine.stop()


def test_what_cannot_be_executed_is_one_sentence(tmp_path: Path) -> None:
    """A file that is no program."""
    program = tmp_path / "python"
    program.write_bytes(b"\0")
    program.chmod(0o755)
    with pytest.raises(CalibrationError, match=r"cannot be run"):
        Child(program, CHILD_SCRIPT, {})


def run(out: Path, python: str, model: str) -> Profile:
    """A small calibration through the command's whole path."""
    limits: dict[str, Any] = {"max_batch_size": 4, "max_context": 128, "max_prefill_tokens": 16}
    more: dict[str, Any] = {"grid": "quick", "repeats": 1, "engine": "vllm", "engine_python": python, "device": "cpu"}
    calibrate(CalibrateOptions(model=model, out=out, command="test", **limits, **more), Console(file=io.StringIO()))
    return load_profile(out)


def test_a_profile_through_a_fake_child_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grid, measurement, fit and file are those of every calibration; the provenance is the child's; and a step time
    proportional to tokens is fitted without error."""
    fake(tmp_path, monkeypatch)
    profile = run(tmp_path / "p.json", str(HERE), "tiny")
    made = profile.provenance
    assert (made.origin, made.source, made.attention, made.torch_version) == ("engine", "a fake 1.0", "NONE", "1")
    assert profile.held_out.all.max == pytest.approx(0, abs=1e-6)


@pytest.mark.skipif(VLLM_PYTHON is None, reason="SIMSERVE_VLLM_PYTHON names no interpreter that has vLLM")
def test_real_vllm_end_to_end(tmp_path: Path) -> None:
    """Every step that vLLM's own scheduler made was the one that its point names (``EngineSteps`` refuses others), and
    its cache holds the bytes per token of the formula."""
    profile = run(tmp_path / "p.json", str(VLLM_PYTHON), "tiny")
    assert profile.provenance.source is not None and profile.provenance.source.startswith("vLLM ")
    assert {sample.phase for sample in profile.samples} == {"prefill", "decode", "mixed"}
    assert profile.kv_bytes_per_token is not None and profile.kv_bytes_per_token.measured == 512
