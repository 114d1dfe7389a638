"""vLLM's side of a replay: children that behave, misbehave and die. The real one is in the slow tier."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")  # calibrate is what needs it
pytest.importorskip("transformers")

from calibrate.errors import CalibrationError
from calibrate.model import find_model
from calibrate.replay import vllm_replay
from calibrate.replay.ask import AskedRequest, ReplaySettings
from calibrate.replay.driver import replay
from calibrate.replay.vllm_replay import VllmReplay
from simserve.recorded.steps import Decode, Prefill

HERE = Path(sys.executable)
SETTINGS = ReplaySettings(8, 512, 320, num_blocks=20, block_size=32)

# Serves everyone at once, a millisecond of wall time a step and half of that on the CPU clock.
GOOD = """
import json, sys
served = {}
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "start":
        config = json.load(open(asked["model"] + "/config.json"))
        print("a banner", file=sys.stderr)
        names = ("num_blocks", "block_size", "prefix_caching", "async_scheduling")
        answer = {"versions": {"vllm": "0.0", "model": config["model_type"]}, **{name: asked[name] for name in names}}
    elif asked["do"] == "add":
        served[asked["id"]] = [len(asked["prompt"]), 0, asked["num_output_tokens"]]
        answer = {"wall_s": 0.0, "cpu_s": 0.0}
    elif asked["do"] == "reset":
        answer = {}
    else:
        work = []
        for i, one in served.items():
            known, cached, left = one
            work.append([i, known - cached, cached])
            one[:] = known + 1, known, left - 1
        finished = [i for i, one in served.items() if not one[2]]
        for i in finished:
            del served[i]
        answer = {"wall_s": 1e-3, "cpu_s": 5e-4, "work": work, "preempted": [], "free_blocks": 3, "finished": finished}
    print(json.dumps(answer), flush=True)
"""


def engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, settings: ReplaySettings = SETTINGS
) -> VllmReplay:
    """The engine of vLLM with another child."""
    script = tmp_path / "child.py"
    script.write_text(code)
    monkeypatch.setattr(vllm_replay, "CHILD_SCRIPT", script)
    return VllmReplay(HERE, find_model("tiny").spec, "fp32", settings)


def test_the_child_s_account_is_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members, clocks, free blocks and versions are the child's; ids go there and come back."""
    server = engine(tmp_path, monkeypatch, GOOD)
    server.forget_prefixes()
    run = replay(server, [AskedRequest(0, (4, 5, 6), 2), AskedRequest(1, (7,), 1)])
    server.stop()
    server.stop()  # twice does no harm
    assert run.versions == {"vllm": "0.0", "model": "qwen2"}
    assert run.steps[0].prefills == (Prefill(0, 3, 0), Prefill(1, 1, 0))
    assert run.steps[1].decodes == (Decode(0, 3),)
    assert [step.end for step in run.steps] == [(5e-4, 1e-3), (1e-3, 2e-3)]
    assert {step.free_blocks for step in run.steps} == {3}
    assert run.settings["engine.kv_cache.num_blocks"] == 20


BROKEN = {
    "dies at once": ("import sys; print('no luck', file=sys.stderr); sys.exit(7)", r"exit code 7 \(no luck\)"),
    "says what failed": ('input(); print(\'{"error": "too large"}\')', "too large"),
    "has other blocks": (GOOD.replace("asked[name] for", "asked[name] + 1 for"), "as asked .got"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_child_that_misbehaves_is_one_sentence(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named interpreter or setting, what went wrong, no traceback, no hang."""
    code, words = BROKEN[case]
    with pytest.raises(CalibrationError, match=words) as caught:
        engine(tmp_path, monkeypatch, code)
    assert "\n" not in str(caught.value)


def test_a_child_that_dies_in_the_middle_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is not half a run."""
    server = engine(tmp_path, monkeypatch, GOOD.replace("        work = []", "        sys.exit(5)"))
    with pytest.raises(CalibrationError, match="exit code 5"):
        replay(server, [AskedRequest(0, (4,), 2)])
    server.stop()


def test_what_vllm_has_not_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' margin would be ignored without a word."""
    with pytest.raises(CalibrationError, match="vLLM has no safety_margin"):
        engine(tmp_path, monkeypatch, GOOD, replace(SETTINGS, safety_margin=0.1))


def test_an_interpreter_without_vllm_is_one_sentence() -> None:
    """The real child script says so itself."""
    if subprocess.run([HERE, "-c", "import vllm"], capture_output=True, check=False).returncode == 0:
        pytest.skip("this interpreter has vLLM")
    with pytest.raises(CalibrationError, match=r"vLLM cannot be imported there .*No module named 'vllm'"):
        VllmReplay(HERE, find_model("tiny").spec, "fp32", SETTINGS)
