"""Steps of an engine that captures CUDA graphs run at captured sizes: which, what padding costs, and what it splits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve import assemble
from simserve.errors import InputError
from simserve.request import Batch, Chunk
from simserve.scenario import parse_scenario
from simserve.step_time.operators import OperatorStepTime, load_operators, splits
from simserve.step_time.operators.captured import CapturedSizes
from simserve.step_time.operators.skew import SkewTable
from tests.builders import run_engine
from tests.operator_builders import DEVICE, SPEC, write_llmservingsim, write_skew
from tests.reference_types import Settings
from tests.scenario_builders import small
from tests.shared_data import needs
from tests.strategies import table_of

US = 1e-6
OPERATORS = 8  # of a layer over tokens, the norm twice
RUN = Path(__file__).parents[2] / "shared" / "data" / "measured" / "vllm-0.19-rtx4090" / "meta.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    alphas = {(2, 0, 0): 0.0, (8, 0, 0): 0.05}
    return write_skew(write_llmservingsim(tmp_path_factory.mktemp("captured") / "bf16"), alphas)


def model(folder: Path, most: int | None) -> OperatorStepTime:
    return OperatorStepTime(load_operators(folder, SPEC, 1), SPEC, max_captured_tokens=most)


def seconds(folder: Path, most: int | None, batch: Batch) -> float:
    return model(folder, most).ramp(batch, 0).first_s


@needs(RUN)
def test_the_sizes_are_those_that_vllm_resolved() -> None:
    """The list in the recorded run's own settings, and its largest."""
    config = json.loads(RUN.read_text())["resolved_config"]["compilation_config"]
    assert CapturedSizes(config["max_cudagraph_capture_size"]).sizes == config["cudagraph_capture_sizes"]


@given(st.none() | st.integers(1, 600), st.integers(1, 700))
def test_a_step_runs_at_the_smallest_size_that_holds_it(most: int | None, tokens: int) -> None:
    """Never at fewer tokens; at a captured size where there is one, and then at no size that is larger than needed."""
    captured = CapturedSizes(most)
    padded = captured.padded(tokens)
    holding = [size for size in captured.sizes if size >= tokens]
    assert padded == min(holding, default=tokens)
    assert captured.padded(padded) == padded
    assert all(size <= (most or 0) for size in captured.sizes)


@pytest.mark.parametrize(
    ("batch", "padded"),
    [
        (Batch((), 9, 9 * 20), 16),
        (Batch((), 8, 8 * 20), 8),
        (Batch((Chunk(12, 5),), 9, 9 * 20), 24),
        (Batch((Chunk(50, 0),)), 56),
        (Batch((Chunk(60, 0),), 2, 40), 62),  # beyond the largest graph
    ],
)
def test_padding_costs_what_its_tokens_cost(folder: Path, batch: Batch, padded: int) -> None:
    """On a device where every operator takes a quarter of a microsecond a token: 8 operators of each layer and two of
    the step take that for each token of padding; attention and the output head take nothing."""
    extra = padded - batch.num_batched_tokens
    cost = US * DEVICE.token_us * extra * (OPERATORS * SPEC.num_layers + 2)
    assert seconds(folder, 56, batch) - seconds(folder, None, batch) == pytest.approx(cost, rel=1e-9, abs=1e-15)


def test_decodes_are_split_by_the_rows_of_their_graph() -> None:
    """Of 26 rows on no context is split: 25 decodes in a graph of 32 are not, 24 in one of 24 are, and 30 without a
    graph are not. Beside a prefill, which no graph holds attention of, rows change nothing."""
    table = SkewTable({(0, 0): {16: 0.0, 64: 0.1}, (64, 0): {16: 0.4, 64: 0.2}}, unsplit_from=26)
    busy = 64 * 0.1 / 0.9
    assert table.alpha(25, num_rows=32) == pytest.approx(busy / (25 + busy))
    assert table.alpha(25) == table.alpha(24, num_rows=24) == 0.0
    assert table.alpha(30) == table.alpha(30, num_rows=32) == pytest.approx(busy / (30 + busy))
    assert table.alpha(25, 64, 0.0, 32) == table.alpha(25, 64, 0.0)


def test_the_model_asks_by_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On 8 multiprocessors and one KV head, 13 rows end the splitting (12.8): nine decodes in a graph of sixteen wait
    for the longest; without graphs they are split, and do not."""
    monkeypatch.setitem(splits.MULTIPROCESSORS, "FORMULA", 8)
    where = write_skew(write_llmservingsim(tmp_path / "split"), {(8, 0, 0): 0.0, (16, 0, 0): 0.2})
    assert SPEC.num_kv_heads == 1
    alone, level = Batch((), 9, 9 * 20, max_decode_context=60), Batch((), 9, 9 * 20, max_decode_context=20)
    assert seconds(where, None, alone) == seconds(where, None, level)
    assert seconds(where, 64, alone) > seconds(where, 64, level)


def test_fast_forward_changes_nothing(folder: Path) -> None:
    """INV-7: the same records with fast-forward on and off, preemptions on the way; and nobody is served earlier."""
    table = table_of([0, 0, 30_000, 900_000, 2_000_000], [50, 9, 30, 70, 4], [40, 25, 1, 33, 60])
    engine = Settings("chunked", "paged", 5, 110, 200, 12, block_size=16)
    on, off = (run_engine(table, engine, model(folder, 64), each).requests for each in (True, False))
    plain = run_engine(table, engine, model(folder, None)).requests
    for name in ("first_token_ns", "last_token_ns", "end_ns"):
        assert getattr(on, name).tolist() == getattr(off, name).tolist()
    assert max(on.last_token_ns) > max(plain.last_token_ns)


def test_a_scenario_says_it(folder: Path, tmp_path: Path) -> None:
    """``max_captured_tokens`` reaches the model and its note; zero is refused in one sentence."""

    def of(**more: object) -> OperatorStepTime:
        config = {"operators": str(folder), **more}
        step_time = assemble.assemble(
            parse_scenario(small(model="tiny", step_time=config), "s.yaml", tmp_path)
        ).step_time
        assert isinstance(step_time, OperatorStepTime)
        return step_time

    batch = Batch((), 5, 100)
    assert of(max_captured_tokens=16).ramp(batch, 0) == model(folder, 16).ramp(batch, 0) != of().ramp(batch, 0)
    assert "steps of up to 16 tokens are padded to captured sizes" in of(max_captured_tokens=16).source.note
    assert "padded" not in of().source.note
    with pytest.raises(InputError, match=r"step_time.max_captured_tokens: must be ≥ 1 \(got 0\)"):
        of(max_captured_tokens=0)
