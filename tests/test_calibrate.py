"""``calibrate`` end to end on the tiny model on the CPU, and what it refuses before it measures anything."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import calibrate.setup as calibrate_setup  # noqa: E402 - after the skips
from calibrate.clock import Timing, time_on_cpu  # noqa: E402
from calibrate.command import calibrate  # noqa: E402
from calibrate.options import CalibrateOptions  # noqa: E402
from simserve.errors import InputError, ProfileError  # noqa: E402
from simserve.model_spec import load_model_spec  # noqa: E402
from simserve.request import Batch, Chunk  # noqa: E402
from simserve.step_time.profile import ProfileStepTime  # noqa: E402
from simserve.step_time.profile_schema import Profile, load_profile  # noqa: E402


def run(out: Path, **options: Any) -> tuple[Profile, str]:
    """A quick calibration; the profile and what was printed."""
    printed = io.StringIO()
    options = {"model": "tiny", "grid": "quick", "max_context": 512, "device": "cpu", "command": "test"} | options
    path = calibrate(CalibrateOptions(out=out, **options), Console(file=printed, width=200))
    assert path == out
    return load_profile(path), printed.getvalue()


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, str, Path]:
    out = tmp_path_factory.mktemp("calibrated") / "tiny-cpu-fp32.json"
    return *run(out), out


def test_a_profile_is_written_and_drives_the_simulator(calibrated: tuple[Profile, str, Path]) -> None:
    """It loads for its model, refuses another, and gives positive step times for every kind of step."""
    profile, _, path = calibrated
    step_time = ProfileStepTime(load_profile(path, load_model_spec("tiny")))
    with pytest.raises(ProfileError, match="must be measured on 25m"):
        load_profile(path, load_model_spec("25m"))
    steps = [
        Batch((Chunk(8, 0),) * 8),
        Batch(num_decodes=4, decode_context_tokens=800),
        Batch((Chunk(64, 64),), 3, 300),
    ]
    assert all(0 < step_time.ramp(batch, 0).first_s < 1 for batch in steps)
    assert profile.name == "tiny-cpu-fp32"


def test_provenance_and_raw_samples_are_complete(calibrated: tuple[Profile, str, Path]) -> None:
    """Versions, device, clock; both clocks of every sample; points held out; KV bytes of real tensors."""
    profile, _, _ = calibrated
    made = profile.provenance
    assert (made.model, made.device, made.dtype, made.threads, made.clock) == ("tiny", "cpu", "fp32", 1, "process_cpu")
    assert made.torch_version == torch.__version__
    assert made.command == "test" and made.weights == "random" and made.kv_cache == "in-place"
    assert all(s.wall_s > 0 and s.cpu_s is not None and s.cpu_s > 0 and s.cuda_s is None for s in profile.samples)
    assert [s.order for s in profile.samples] == list(range(len(profile.samples)))
    assert profile.held_out.prefill.num_points >= 1 and profile.held_out.decode.num_points >= 1
    assert profile.mixed is not None and profile.held_out.mixed.num_points >= 1
    assert {s.phase for s in profile.samples} == {"prefill", "decode", "mixed", "no_cache"}
    # 2 · 2 layers · 1 KV head · 32 · 4 bytes
    assert profile.kv_bytes_per_token.measured == 512


def test_the_tables_and_the_knee_are_printed(calibrated: tuple[Profile, str, Path]) -> None:
    """Prefill over new tokens × context, decode over batch × context, the batch curve, the error, the place."""
    profile, printed, path = calibrated
    for words in ("Prefill, ms", "Decode step, ms", f"knee at batch {profile.batch_curve.knee}", "512 bytes per token"):
        assert words in printed
    for kind in ("prefill", "decode", "mixed", "all"):
        assert f"Held-out error, {kind}: mean" in printed
    assert f"wrote {path}" in printed.replace("\n", "")


def test_nothing_but_the_profile_is_left_behind(calibrated: tuple[Profile, str, Path]) -> None:
    """The partial file and temporary files are gone."""
    path = calibrated[2]
    assert list(path.parent.iterdir()) == [path]
    assert json.loads(path.read_text())["schema_version"] == 1


def no_hub(name: str) -> None:
    """A machine without a network."""
    raise OSError(f"We couldn't connect to find {name}.\nCheck your internet connection.")


def interrupt_after(num_steps: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the timer raise as Ctrl-C does at some step; returns a counter of timed steps."""
    count = [0]

    def timer(step: Callable[[], object]) -> Timing:
        count[0] += 1
        if count[0] == num_steps:
            raise KeyboardInterrupt
        return time_on_cpu(step)

    monkeypatch.setattr(calibrate_setup, "time_on_cpu", timer)
    return count


def test_an_interrupted_calibration_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C keeps the samples in a partial file and no profile; the same command continues and ends with one."""
    out = tmp_path / "p.json"
    interrupt_after(40, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(out)
    partial = tmp_path / "p.json.partial"
    assert list(tmp_path.iterdir()) == [partial]
    kept = json.loads(partial.read_text())["samples"]
    assert kept

    monkeypatch.setattr(calibrate_setup, "time_on_cpu", time_on_cpu)
    profile, printed = run(out)
    assert f"{len(kept)} samples are there" in printed.replace("\n", " ")
    assert [s.model_dump(mode="json", exclude_defaults=True) for s in profile.samples[: len(kept)]] == kept
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("other", [{"attn": "eager"}, {"seed": 1}, {"max_context": 256}, {"resume": False}])
def test_samples_of_another_calibration_are_not_continued(
    other: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A different kernel, order or grid, or --no-resume, starts afresh."""
    out = tmp_path / "p.json"
    interrupt_after(20, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(out)
    interrupt_after(1, monkeypatch)
    printed = io.StringIO()
    options = {"model": "tiny", "grid": "quick", "max_context": 512, "device": "cpu"} | other
    with pytest.raises(KeyboardInterrupt):
        calibrate(CalibrateOptions(out=out, **options), Console(file=printed))
    assert "continuing" not in printed.getvalue()


@pytest.mark.parametrize("content", ["", "{", '{"fingerprint": 1}', "[]", "null"])
def test_a_broken_partial_file_is_ignored(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a partial file is worth nothing, and does no harm."""
    (tmp_path / "p.json.partial").write_text(content)
    interrupt_after(1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "25n"}, "did you mean '25m'"),
        ({"model": "no/such-model"}, "nor to be had from the hub (We couldn't connect"),
        ({"attn": "nonsense"}, "cannot be built here"),
        ({"threads": 0}, "threads: must be ≥ 1 (got 0)"),
        ({"graphs": True}, "graphs: needs a GPU and the in-place cache (got cpu)"),
        ({"attn": "sdpa,"}, "attn: must name each kernel once"),
        ({"max_batch_size": 0}, "max_batch_size: must be ≥ 1 (got 0)"),
        ({"out": "missing/p.json"}, "its folder must exist"),
        ({"out": "."}, "must be a file to write"),
        ({"out": "/proc/p.json"}, "cannot be written"),
        ({"max_batch_size": 1}, "at least 2 rows of 2 contexts"),
    ],
)
def test_refusals_come_before_any_measurement(
    options: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, nothing timed, nothing written."""
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", no_hub)
    monkeypatch.chdir(tmp_path)
    count = interrupt_after(1, monkeypatch)
    out = Path(options.pop("out", "p.json"))
    with pytest.raises(InputError) as caught:
        run(out, **options)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert count == [0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """It never falls back to the CPU in silence."""
    with pytest.raises(InputError, match="torch sees no GPU"):
        run(tmp_path / "p.json", device="cuda")


def test_a_local_folder_with_and_without_weights(tmp_path: Path) -> None:
    """config.json alone gets random weights; weights are used when they are there, and the profile says which."""
    from calibrate.model import build_model, find_model

    folder = tmp_path / "mine"
    build_model(find_model("tiny"), "cpu", "fp32", "sdpa", 3).save_pretrained(folder)
    limits = {"max_batch_size": 4, "max_prefill_tokens": 8, "repeats": 1, "max_context": 512}
    trained, _ = run(tmp_path / "trained.json", model=str(folder), **limits)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    bare, _ = run(tmp_path / "bare.json", model=str(folder), **limits)
    assert (trained.provenance.weights, bare.provenance.weights) == ("trained", "random")
    assert trained.provenance.model == "mine"
    assert trained.provenance.dimensions == bare.provenance.dimensions


def test_the_dynamic_cache_and_other_dtypes_can_be_timed_too(tmp_path: Path) -> None:
    """Every choice of the command line reaches the measurement."""
    limits = {"max_batch_size": 4, "max_prefill_tokens": 8, "repeats": 1, "max_context": 64}
    profile, _ = run(tmp_path / "p.json", kv_cache="dynamic", dtype="bf16", attn="eager", threads=2, **limits)
    made = profile.provenance
    assert (made.kv_cache, made.dtype, made.attention, made.threads) == ("dynamic", "bf16", "eager", 2)
    assert made.clock == "wall"
    assert profile.kv_bytes_per_token.measured == 256
