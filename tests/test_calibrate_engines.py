"""Whole engine steps: transformers' continuous batching, driven at a batch and context that its own inputs confirm."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from calibrate.clock import Timing  # noqa: E402 - after the skips
from calibrate.command import calibrate  # noqa: E402
from calibrate.engines.choose import make_engine  # noqa: E402
from calibrate.engines.engine import EngineSize, EngineSteps, StepShape, shape_of  # noqa: E402
from calibrate.engines.transformers_engine import TransformersEngine  # noqa: E402
from calibrate.errors import CalibrationError  # noqa: E402
from calibrate.grid import Point  # noqa: E402
from calibrate.model import build_model, find_model  # noqa: E402
from calibrate.options import CalibrateOptions  # noqa: E402
from simserve.errors import InputError  # noqa: E402
from simserve.request import Batch, Chunk  # noqa: E402
from simserve.step_time.profile import ProfileStepTime  # noqa: E402
from simserve.step_time.profile_schema import Profile, load_profile  # noqa: E402

POINTS = {
    "one decode": Point("decode", 1, 1, 37),
    "decodes over one cached token": Point("decode", 3, 1, 1),
    "a batch of decodes": Point("decode", 6, 1, 200),
    "decodes over unequal contexts": Point("decode", 4, 1, 100, context_spread=0.75),
    "a prompt": Point("prefill", 1, 40, 0),
    "one token over a context": Point("prefill", 1, 1, 64),
    "a chunk over a context": Point("prefill", 1, 24, 80),
    "packed prompts": Point("prefill", 3, 8, 0),
    "a chunk beside decodes": Point("mixed", 1, 16, 32, num_decodes=4, num_decode_context_tokens=90),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model(find_model("tiny"), "cpu", "fp32", "sdpa", 0)


def seen_by(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[StepShape, int]]:
    """What each forward of ``model`` was given from now on: sequences by the lengths that its attention reads, and
    tokens of its input."""
    seen: list[tuple[StepShape, int]] = []
    forward = model.forward

    def spy(*args: Any, **kwargs: Any) -> Any:
        queries, keys = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
        keys = keys["full_attention"] if isinstance(keys, dict) else keys
        new = [b - a for a, b in pairwise(queries.tolist())]
        held = [b - a for a, b in pairwise(keys.tolist())]
        shape = tuple((n, k - n) for n, k in zip(new, held, strict=True) if n)
        seen.append((shape, kwargs["input_ids"].numel()))
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", spy)
    return seen


def test_a_step_holds_exactly_the_sequences_that_its_point_names(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that claims batch B × context C really has B sequences with C cached tokens: by the engine's account, by
    the lengths that attention was given, and by the blocks that hold them; twice in any order."""
    engine = TransformersEngine(model)
    facts = engine.start([shape_of(point) for point in POINTS.values()])
    assert facts.source == f"transformers continuous batching {transformers.__version__}"
    assert facts.kv_bytes_per_token == 512  # 2 · 2 layers · 1 KV head · 32 · 4 bytes
    steps, seen = EngineSteps(engine), seen_by(model, monkeypatch)
    for what in (*POINTS, *reversed(POINTS)):
        asked = shape_of(POINTS[what])
        steps.prepare(POINTS[what])
        timing = steps.timer(steps.step)
        assert timing.wall_s > 0 and timing.cpu_s > 0
        shape, num_tokens = seen[-1]
        assert sorted(engine.computed()) == sorted(asked) == sorted(shape), what
        assert num_tokens == sum(new for new, _ in asked), what
        tables = engine._processor.cache.cache_allocators["full_attention"].block_table
        blocks = sorted(-(-(new + context) // 16) for new, context in asked)
        assert sorted(len(table) for table in tables.values()) == blocks, what
    assert len(seen) == 2 * len(POINTS)  # one forward per step, and none to prepare it
    engine.stop()


def test_a_decode_that_follows_continues_the_same_sequences(model: Any) -> None:
    """The engine goes on from a declared context as from a computed one: the next step has one token more cached."""
    engine = TransformersEngine(model)
    shape = ((1, 30), (1, 47), (12, 20))
    engine.start([shape, ((1, 200),) * 3])
    engine.prepare(shape)
    engine.step()
    engine.step()
    assert sorted(engine.computed()) == [(1, 31), (1, 32), (1, 48)]
    engine.stop()


class OtherEngine:
    """Computes something else than what it was asked for."""

    def prepare(self, shape: StepShape, num_steps: int = 1) -> None:
        self.shape = shape

    def step(self) -> Timing:
        return Timing(1.0, 1.0)

    def computed(self) -> StepShape:
        return self.shape[1:]


def test_a_step_of_another_shape_is_never_kept() -> None:
    """A version of the engine that schedules otherwise is refused with both shapes."""
    steps = EngineSteps(OtherEngine())
    steps.prepare(Point("decode", 3, 1, 50))
    with pytest.raises(CalibrationError, match=r"must be 3 × 1 new tokens over 50 .got 2 × 1 new tokens over 50"):
        steps.timer(steps.step)


counts = st.integers(0, 40)
positive = st.integers(1, 300)


@given(positive, positive, st.integers(0, 500), counts, positive)
def test_a_mixed_point_loses_no_token(prompts: int, new: int, context: int, decodes: int, beside: int) -> None:
    """The sequences of a step compute and hold what the point says, and the engine is made large enough for them."""
    point = Point("mixed", prompts, new, context, num_decodes=decodes, num_decode_context_tokens=beside)
    shape = shape_of(point)
    assert len(shape) == prompts + decodes
    assert sum(n + c for n, c in shape) == point.cache_tokens
    size = EngineSize.of([shape], 16)
    assert size.max_num_batched_tokens == prompts * new + decodes
    assert size.num_blocks * 16 >= point.cache_tokens + len(shape)
    assert size.max_model_len > max(n + c for n, c in shape)


@given(st.integers(1, 64), st.integers(1, 4000), st.sampled_from([0.0, 0.25, 0.75]))
def test_a_decode_point_keeps_its_mean(batch: int, context: int, spread: float) -> None:
    """Unequal contexts spread about the mean that the point names (to the rounding of whole tokens)."""
    shape = shape_of(Point("decode", batch, 1, context, context_spread=spread if batch > 1 else 0.0))
    assert {new for new, _ in shape} == {1} and len(shape) == batch
    assert sum(c for _, c in shape) / batch == pytest.approx(context, abs=1.0)


def run(out: Path, **options: Any) -> tuple[Profile, str]:
    """A small calibration of the tiny model."""
    printed = io.StringIO()
    limits = {"max_batch_size": 4, "max_context": 128, "max_prefill_tokens": 16, "grid": "quick", "repeats": 1}
    given = {"model": "tiny", "device": "cpu", "command": "test", "engine": "transformers"} | limits | options
    calibrate(CalibrateOptions(out=out, **given), Console(file=printed, width=200))
    return load_profile(out), printed.getvalue()


def test_a_profile_of_engine_steps_end_to_end(tmp_path: Path) -> None:
    """Same format as bare forwards, engine and version in the provenance, mixed steps measured; it drives a step time,
    and its note no longer says that an engine's work comes on top."""
    profile, printed = run(tmp_path / "tiny-engine.json")
    made = profile.provenance
    assert (made.origin, made.attention, made.kv_cache) == ("engine", "sdpa", "paged, blocks of 16")
    assert made.source is not None and made.source.startswith("transformers continuous batching 5.")
    assert {sample.phase for sample in profile.samples} == {"prefill", "decode", "mixed"}
    assert profile.held_out.all.num_points >= 3 and profile.kv_bytes_per_token is not None
    assert any("contexts were declared" in note for note in made.notes)
    step_time = ProfileStepTime(profile)
    assert "engine's own work" not in step_time.source.note and made.source in step_time.source.note
    assert 0 < step_time.ramp(Batch((Chunk(8, 0),), 2, 60), 0).first_s < 1
    assert "wrote" in printed
    assert list(tmp_path.iterdir()) == [tmp_path / "tiny-engine.json"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "transformer"}, "engine: must be one that can be driven (got 'transformer'); did you mean"),
        ({"engine": "nonsense"}, "use one of generate, transformers, vllm"),
        ({"engine_python": "python3"}, "engine_python: is for engines that run elsewhere"),
        ({"kv_cache": "dynamic"}, "kv_cache: an engine has its own (got dynamic)"),
        ({"engine": None, "engine_python": "python3"}, "engine_python: is for --engine vllm"),
        ({"engine": None, "overhead_for": Path("p.json")}, "overhead_for: needs --engine"),
        ({"engine": "vllm"}, "engine_python: must name the Python that has vLLM"),
        ({"engine": "vllm", "engine_python": "/nowhere/python"}, "must be an interpreter that can be run"),
    ],
)
def test_what_cannot_be_driven_is_refused_in_one_sentence(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Before anything is measured, and nothing is written."""
    with pytest.raises(InputError) as caught:
        run(tmp_path / "p.json", **options)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_cuda_graphs_are_for_bare_forwards() -> None:
    """An engine captures its own or none: the flag is refused, not ignored, on a machine with a GPU too."""
    options = CalibrateOptions(model="tiny", engine="transformers", graphs=True)
    with pytest.raises(CalibrationError, match="graphs: is for bare forwards"):
        make_engine(find_model("tiny"), "cuda", "bf16", options)
