"""Operator tables read twice: the steps of a simulation against those that the importer composes for a profile, against
rows added up by hand, and against themselves in other units."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrate.importers import llmservingsim, vidur
from simserve.errors import ProfileError
from simserve.request import Batch, Chunk
from simserve.step_time.operators import OperatorStepTime, load_operators
from simserve.step_time.stretch import Stretch
from tests.operator_builders import DEVICE, SPEC, Device, step_time, write_llmservingsim, write_vidur

US = 1e-6
ROWS = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")


def test_a_measured_step_is_the_imported_one(tmp_path: Path) -> None:
    """Every measured shape, prefills, decodes and mixed steps: the importer's whole step, which is composed apart."""
    folder = write_llmservingsim(tmp_path / "x")
    model = step_time(folder)
    steps = llmservingsim.compose(folder / "tp1", SPEC.num_layers)
    assert len(steps) > 500
    for row in steps.itertuples():
        chunks = (Chunk(row.prefill_chunk, row.kv_prefill),) if row.prefill_chunk else ()
        batch = Batch(chunks, row.n_decode, row.n_decode * row.kv_decode)
        assert model.ramp(batch, 0).first_s == pytest.approx(row.seconds, rel=1e-9)


def test_a_measured_step_of_vidur_s_is_the_imported_one(tmp_path: Path) -> None:
    """The same of Vidur's tables, where the importer leaves the embedding out."""
    folder = write_vidur(tmp_path / "x")
    model = step_time(folder, 2)
    steps = vidur.compose(folder / "mlp.csv", folder / "attention.csv", 2, SPEC.num_layers)
    assert len(steps) > 40
    for row in steps.itertuples():
        context = row.kv_cache_size
        decode = Batch((), row.batch_size, row.batch_size * context)
        batch = Batch((Chunk(row.prefill_chunk_size, context),)) if row.is_prefill else decode
        embedding = US * DEVICE.operator(batch.num_batched_tokens)
        assert model.ramp(batch, 0).first_s == pytest.approx(row.seconds + embedding, rel=1e-9)


def test_a_decode_by_hand(tmp_path: Path) -> None:
    """Two decodes over 16 tokens each, from the rows of the files: 2 layers × (seven operators, the norm once more, and
    attention), the embedding and the last norm, the head and the sampler."""
    folder = write_llmservingsim(tmp_path / "x")
    with (folder / "tp1" / "dense.csv").open() as file:
        dense = {(row["layer"], row["tokens"]): float(row["time_us"]) for row in csv.DictReader(file)}
    with (folder / "tp1" / "attention.csv").open() as file:
        attention = {tuple(row[name] for name in ROWS[:4]): float(row["time_us"]) for row in csv.DictReader(file)}
    with (folder / "tp1" / "per_sequence.csv").open() as file:
        rows = {(row["layer"], row["sequences"]): float(row["time_us"]) for row in csv.DictReader(file)}
    layer = sum(
        us for (name, tokens), us in dense.items() if tokens == "2" and name not in ("embedding", "final_layernorm")
    )
    layer += dense["layernorm", "2"] + attention["0", "0", "2", "16"]
    once = dense["embedding", "2"] + dense["final_layernorm", "2"] + rows["lm_head", "2"] + rows["sampler", "2"]
    assert step_time(folder).ramp(Batch((), 2, 32), 0).first_s == pytest.approx(US * (2 * layer + once), rel=1e-9)


@given(st.floats(0.1, 50.0), st.integers(1, 80), st.integers(0, 400), st.integers(0, 12))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_device_twice_as_slow_takes_twice_as_long(
    tmp_path_factory: pytest.TempPathFactory, factor: float, new: int, context: int, decodes: int
) -> None:
    """Homogeneity: all measurements times a factor, every step times it, inside the grid and out."""
    slower = Device(*[factor * us for us in (3.0, 0.25, 2.0, 5.0, 0.01, 0.5, 0.02)])
    folder = tmp_path_factory.mktemp("pair")
    first, second = step_time(write_llmservingsim(folder / "a")), step_time(write_llmservingsim(folder / "b", slower))
    batch = Batch((Chunk(new, context),), decodes, decodes * 70)
    assert second.ramp(batch, 3).first_s == pytest.approx(factor * first.ramp(batch, 3).first_s, rel=1e-9)


def wild_rows() -> st.SearchStrategy[list[tuple[float, ...]]]:
    """Attention of any shape, in any order, with repeats: what a profiler that went wrong might leave."""
    count = st.integers(0, 70)
    row = st.tuples(count, count, st.integers(0, 9), count, st.floats(0, 1e6))
    return st.lists(row, max_size=12)


@given(wild_rows(), st.integers(1, 90), st.integers(0, 300), st.integers(0, 20), st.integers(0, 90))
@settings(max_examples=60, deadline=None)
def test_any_table_is_refused_or_gives_steps_that_take_time(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[float, ...]],
    new: int,
    context: int,
    decodes: int,
    mean: int,
) -> None:
    """Whatever attention.csv holds: one sentence, or positive and finite durations that never fall with context."""
    folder = write_llmservingsim(tmp_path_factory.mktemp("wild") / "x")
    least = [(4, 0, 0, 0, 1.0), (0, 0, 1, 8, 1.0), (4, 0, 1, 8, 1.0)]
    with (folder / "tp1" / "attention.csv").open("w", newline="") as file:
        csv.writer(file).writerows([ROWS, *(least if len(rows) % 2 else []), *rows])
    try:
        model = OperatorStepTime(load_operators(folder, SPEC), SPEC)
    except ProfileError as error:
        assert "\n" not in str(error) and "attention.csv" in str(error)
        return
    chunks = (Chunk(new, context),) if new % 2 or not decodes else ()
    batch, later = Batch(chunks, decodes, decodes * mean), Batch(chunks, decodes, decodes * (mean + 9))
    here, there = model.ramp(batch, 0).first_s, model.ramp(later, 0).first_s
    assert 0 < here <= there * (1 + 1e-12) < math.inf
    stretch = Stretch(model, batch)
    steps = math.fsum(model.ramp(batch, k).first_s for k in range(40))
    assert stretch.span_s(40) == pytest.approx(steps, rel=1e-9)


def test_a_single_point_of_each_kind_is_enough_to_run(tmp_path: Path) -> None:
    """Three measured shapes: answered flat and flagged away from them, with no held-out error of attention to state."""
    folder = write_llmservingsim(tmp_path / "x")
    points = [(8, 0, 0, 0, 4.0), (0, 0, 2, 16, 3.0), (8, 0, 2, 16, 6.0)]
    with (folder / "tp1" / "attention.csv").open("w", newline="") as file:
        csv.writer(file).writerows([ROWS, *points])
    model = step_time(folder)
    exact, away = Batch((Chunk(8, 0),), 2, 32), Batch((Chunk(8, 50),), 2, 320)
    assert (model.ramp(exact, 0).extrapolated, model.ramp(away, 0).extrapolated) == (False, True)
    assert model.ramp(exact, 0).first_s == pytest.approx(model.ramp(away, 0).first_s)
    assert model.source.holdout_mape == pytest.approx(0.0, abs=1e-9)
