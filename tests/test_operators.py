"""Step times summed from operators: closed forms on a linear device, and laws on any."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.request import Batch, Chunk
from simserve.step_time.operators import OperatorStepTime
from simserve.step_time.operators.packing import packed
from simserve.step_time.stretch import Stretch
from tests.builders import run_engine
from tests.operator_builders import DEVICE, SPEC, step_time, write_llmservingsim, write_vidur
from tests.reference_types import Settings
from tests.strategies import table_of

US = 1e-6
LAYERS = SPEC.num_layers
chunks = st.lists(st.builds(Chunk, st.integers(1, 40), st.integers(0, 200)), min_size=1, max_size=5)
batches = st.builds(
    lambda chunks, decodes, mean, rest: Batch(tuple(chunks), decodes, decodes * mean + min(rest, decodes)),
    st.one_of(st.just([]), chunks),
    st.integers(0, 20),
    st.integers(0, 300),
    st.integers(0, 3),
).filter(lambda batch: batch.num_seqs > 0)


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> OperatorStepTime:
    """Prefills and decodes in one kernel (LLMServingSim's layout)."""
    return step_time(write_llmservingsim(tmp_path_factory.mktemp("fused") / "bf16"))


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> OperatorStepTime:
    """One kernel after the other (Vidur's layout)."""
    return step_time(write_vidur(tmp_path_factory.mktemp("apart") / "a100" / "model"), tensor_parallel=2)


def seconds(model: OperatorStepTime, batch: Batch, step: int = 0) -> float:
    return model.ramp(batch, step).first_s


def dense(tokens: int) -> float:
    """Eight operators of a layer (the norm twice), and two that run once."""
    return LAYERS * 8 * DEVICE.operator(tokens) + 2 * DEVICE.operator(tokens)


def grown(batch: Batch, step: int) -> Batch:
    """What a repeated decision has become ``step`` steps later."""
    moved = tuple(Chunk(new, context + step * new) for new, context in batch.chunks)
    return Batch(moved, batch.num_decodes, batch.decode_context_tokens + step * batch.num_decodes)


def sums() -> Iterator[Batch]:
    yield Batch((Chunk(16, 32),))
    yield Batch((Chunk(20, 5),))  # between rows and contexts
    yield Batch((Chunk(16, 0), Chunk(16, 0)))
    yield Batch((Chunk(5, 3), Chunk(30, 100), Chunk(8, 0)))
    yield Batch((), 3, 3 * 20)
    yield Batch((Chunk(24, 40),), 6, 6 * 50 + 1)
    yield Batch((Chunk(8, 0),) * 4, 2, 40)
    yield Batch((Chunk(70, 200),), 12, 12 * 150)  # beyond every axis


@pytest.mark.parametrize("batch", list(sums()))
def test_a_step_is_the_sum_of_its_operators(fused: OperatorStepTime, batch: Batch) -> None:
    """On a linear device: layers × (operators of a layer + attention of all pairs and all cached tokens), the embedding
    and the last norm once, the head and the sampler per sequence; exact between points, for several prefills, and
    beyond the grid."""
    expected = dense(batch.num_batched_tokens) + LAYERS * DEVICE.batch(batch) + 2 * DEVICE.row_us * batch.num_seqs
    assert seconds(fused, batch) == pytest.approx(US * expected, rel=1e-9)


@pytest.mark.parametrize("batch", list(sums()))
def test_kernels_apart_are_launched_apart(apart: OperatorStepTime, batch: Batch) -> None:
    """Vidur's tables: the layer has ten operators (two additions), a mixed step pays both kernels' launches, and there
    is neither a head nor a sampler."""
    tokens = batch.num_batched_tokens
    launches = DEVICE.launch_us if batch.chunks and batch.num_decodes else 0.0
    expected = LAYERS * (10 * DEVICE.operator(tokens) + DEVICE.batch(batch) + launches) + DEVICE.operator(tokens)
    assert seconds(apart, batch) == pytest.approx(US * expected, rel=1e-9)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 500)), min_size=1, max_size=6))
def test_a_packed_chunk_has_the_tokens_and_the_pairs_of_all(parts: list[tuple[int, int]]) -> None:
    """Q = Σ n and Q·C + Q²/2 = Σ (n·c + n²/2), now and after any number of steps."""
    batch = Batch(tuple(Chunk(*part) for part in parts))
    tokens, context, growth = packed(batch)
    assert tokens == sum(new for new, _ in parts)
    for step in (0, 7):
        pairs = sum(new * (old + step * new) + new * new / 2 for new, old in parts)
        assert tokens * (context + growth * step) + tokens**2 / 2 == pytest.approx(pairs, rel=1e-9)


def test_a_chunk_does_the_work_of_its_halves(fused: OperatorStepTime) -> None:
    """Attention alone: 2q tokens over c cached ones are q over c and q over c + q."""
    whole, halves = Batch((Chunk(32, 16),)), Batch((Chunk(16, 16), Chunk(16, 32)))
    rows_us = 2 * DEVICE.row_us  # the second sequence's head and sampler
    assert seconds(fused, halves) - seconds(fused, whole) == pytest.approx(US * rows_us, rel=1e-9)


def test_host_overhead_is_added_to_every_step_and_said(tmp_path: Path, fused: OperatorStepTime) -> None:
    """0.8 ms a step is 0.8 ms a step, and the note names it; so does the note that has none."""
    slow = step_time(write_llmservingsim(tmp_path / "x"), host_overhead_s=0.0008)
    for batch in sums():
        assert seconds(slow, batch) == pytest.approx(seconds(fused, batch) + 0.0008, rel=1e-12)
    assert "host overhead 0.8 ms a step, as the scenario declares" in slow.source.note
    assert "host overhead 0 ms a step" in fused.source.note


@pytest.mark.parametrize(
    ("batch", "outside"),
    [
        (Batch((Chunk(64, 128),)), False),
        (Batch((Chunk(65, 0),)), True),
        (Batch((Chunk(3, 0),)), True),
        (Batch((Chunk(64, 129),)), True),
        (Batch((Chunk(8, 0),) * 8), False),
        (Batch((), 8, 8 * 128), False),
        (Batch((), 8, 8 * 128 + 1), True),
        (Batch((), 9, 9 * 64), True),
        (Batch((), 1, 7), True),
        (Batch((Chunk(64, 128),), 8, 8 * 128), False),
        (Batch((Chunk(64, 128),), 8, 8 * 128 + 1), True),
        (Batch((Chunk(64, 128),), 9, 9 * 64), True),
        (Batch((Chunk(8, 0),) * 4, 8, 8 * 8), False),
    ],
)
def test_what_lies_outside_the_grid_is_flagged(fused: OperatorStepTime, batch: Batch, outside: bool) -> None:
    """The last measured point is inside; one more token, decode, cached token is not. Several prompts that attend to
    less than any one chunk of as many tokens are a composition, not an extrapolation."""
    assert fused.ramp(batch, 0).extrapolated is outside


@settings(max_examples=150, deadline=None)
@given(batches, st.integers(1, 300), st.booleans())
def test_a_stretch_is_the_sum_of_its_steps(
    fused: OperatorStepTime, apart: OperatorStepTime, batch: Batch, num_steps: int, one_kernel: bool
) -> None:
    """INV-7: ramps, cut where the tables bend, add up to the durations of the steps asked for one by one."""
    model = fused if one_kernel else apart
    total = math.fsum(seconds(model, grown(batch, k)) for k in range(num_steps))
    assert Stretch(model, batch).span_s(num_steps) == pytest.approx(total, rel=1e-9)


@given(batches, st.integers(0, 10_000))
def test_every_step_takes_time(fused: OperatorStepTime, apart: OperatorStepTime, batch: Batch, step: int) -> None:
    """Durations are positive and finite for whatever a policy may schedule, however far outside the grid."""
    for model in (fused, apart):
        ramp = model.ramp(batch, step)
        assert 0 < ramp.first_s < math.inf
        assert ramp.num_steps >= 1
        assert ramp.at(min(ramp.num_steps - 1, 10**6)) > 0


@pytest.mark.parametrize("policy", ["chunked", "continuous", "static"])
@pytest.mark.parametrize("layout", ["fused", "apart"])
def test_fast_forward_changes_nothing(layout: str, policy: str, request: pytest.FixtureRequest) -> None:
    """INV-7: the same records with fast-forward on and off, under every policy, with preemptions on the way."""
    model = request.getfixturevalue(layout)
    table = table_of([0, 0, 30_000, 900_000, 2_000_000], [50, 9, 30, 70, 4], [40, 25, 1, 33, 60])
    engine = Settings(policy, "paged", 4, 110, 200, 12, block_size=16)
    on, off = (run_engine(table, engine, model, fast_forward).requests for fast_forward in (True, False))
    assert on.first_token_ns.tolist() == off.first_token_ns.tolist()
    assert on.last_token_ns.tolist() == off.last_token_ns.tolist()
    assert on.end_ns.tolist() == off.end_ns.tolist()
    assert min(on.last_token_ns) > 0
    assert on.num_preemptions.sum() > 0 or policy == "static"


def test_the_source_says_who_measured_and_how_wrong(fused: OperatorStepTime, apart: OperatorStepTime) -> None:
    """The badge: calibrated, the device, an error that is nothing on a linear device, and every measured pure step."""
    source = fused.source
    assert (source.kind, source.device, source.calibrated) == ("operators", "A Formula", True)
    assert source.holdout_mape == pytest.approx(0.0, abs=1e-9)
    assert "2026-01-02 on A Formula by LLMServingSim's profiler under vLLM 0.0" in source.note
    assert {(p.phase, p.batch_size, p.num_new_tokens) for p in source.points} >= {("prefill", 1, 64), ("decode", 8, 1)}
    for point in source.points:
        new, context = point.num_new_tokens, point.num_context_tokens
        decodes = point.batch_size if point.phase == "decode" else 0
        batch = Batch((), decodes, decodes * context) if decodes else Batch((Chunk(new, context),))
        assert point.seconds == pytest.approx(seconds(fused, batch), rel=1e-9)
    assert apart.source.device == "2 × a100"
    assert "output head, sampler, all-reduces" in apart.source.note
