"""Decodes of unequal context in a step: what the longest adds to the mean, on a device whose times are formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve import assemble
from simserve.errors import InputError
from simserve.request import Batch, Chunk
from simserve.scenario import parse_scenario
from simserve.step_time.operators import OperatorStepTime, load_operators
from simserve.step_time.stretch import Stretch
from tests.builders import run_engine
from tests.operator_builders import DEVICE, SPEC, step_time, write_llmservingsim, write_skew
from tests.reference_types import Settings
from tests.scenario_builders import small
from tests.strategies import table_of

US = 1e-6
ALPHAS = {
    **{(2, 0, 0): 0.25, (8, 0, 0): 0.05},
    **{(2, 4, 0): 0.5, (8, 4, 0): 0.4, (2, 4, 128): 0.2, (8, 4, 128): 0.1, (2, 64, 0): 0.6, (2, 64, 128): 0.9},
}
chunks = st.lists(st.builds(Chunk, st.integers(1, 40), st.integers(0, 200)), max_size=3)
batches = st.builds(
    lambda chunks, decodes, mean, more: Batch(tuple(chunks), decodes, decodes * mean, max_decode_context=mean + more),
    chunks,
    st.integers(1, 20),
    st.integers(0, 300),
    st.integers(0, 500),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_skew(write_llmservingsim(tmp_path_factory.mktemp("skew") / "bf16"), ALPHAS)


@pytest.fixture(scope="module")
def skewed(folder: Path) -> OperatorStepTime:
    return step_time(folder)


@pytest.fixture(scope="module")
def at_mean(folder: Path) -> OperatorStepTime:
    return step_time(folder, unequal_contexts=False)


def seconds(model: OperatorStepTime, batch: Batch, step: int = 0) -> float:
    return model.ramp(batch, step).first_s


S_OF_2, S_OF_8 = 2 * 0.25 / 0.75, 8 * 0.05 / 0.95  # from alpha = s/(n + s)
S_OF_4 = (S_OF_2 + S_OF_8) / 2  # half way in the logarithm


@pytest.mark.parametrize(
    ("batch", "alpha", "beyond"),
    [
        (Batch((), 2, 2 * 20, max_decode_context=32), 0.25, 2 * 12),
        (Batch((), 8, 8 * 20, max_decode_context=110), 0.05, 8 * 90),
        (Batch((), 4, 4 * 20, max_decode_context=32), S_OF_4 / (4 + S_OF_4), 4 * 12),
        (Batch((), 16, 16 * 20, max_decode_context=32), S_OF_8 / (16 + S_OF_8), 16 * 12),  # the last known
        (Batch((Chunk(4, 0),), 2, 2 * 20, max_decode_context=32), 0.5, 2 * 12),
        (Batch((Chunk(4, 120),), 8, 8 * 20, max_decode_context=32), 0.1, 8 * 12),
        (Batch((Chunk(40, 1), Chunk(20, 0)), 2, 2 * 20, max_decode_context=32), 0.6, 2 * 12),
        (Batch((), 1, 20, max_decode_context=20), 0.0, 0),
        (Batch((), 3, 60, max_decode_context=20), 0.0, 0),
        (Batch((), 3, 60), 0.0, 0),  # nobody says how long the longest is
    ],
)
def test_the_longest_adds_its_share(
    skewed: OperatorStepTime, at_mean: OperatorStepTime, batch: Batch, alpha: float, beyond: int
) -> None:
    """On a linear device n decodes at the longest cost n (longest − mean) cached tokens more in every layer, of which a
    step takes the share alpha of its decodes and of the prefill nearest to its own; nothing where all are alike."""
    more = SPEC.num_layers * alpha * DEVICE.cached_us * beyond
    assert seconds(skewed, batch) == pytest.approx(seconds(at_mean, batch) + US * more, rel=1e-9)


def test_left_out_is_as_if_never_measured(tmp_path: Path, at_mean: OperatorStepTime) -> None:
    """Without ``skew.csv``, and with it switched off: the mean, nothing is asked of the engine, and the note tells."""
    without = step_time(write_llmservingsim(tmp_path / "x"))
    batch = Batch((Chunk(8, 3),), 5, 5 * 40, max_decode_context=190)
    assert seconds(without, batch) == seconds(at_mean, batch)
    assert not without.needs_max_decode_context and not at_mean.needs_max_decode_context
    assert "at their mean context, several" in without.source.note
    assert "at their mean context, what the longest costs beyond it left out as the scenario" in at_mean.source.note


def test_the_note_names_the_share(skewed: OperatorStepTime) -> None:
    """A reader of the report sees that unequal contexts count."""
    assert skewed.needs_max_decode_context
    assert "at their mean context and a measured share of what the longest costs beyond it, several" in (
        skewed.source.note
    )


@given(batches, st.integers(0, 300))
def test_a_step_lies_between_its_mean_and_its_longest(
    skewed: OperatorStepTime, at_mean: OperatorStepTime, batch: Batch, step: int
) -> None:
    """Whatever the batch, inside the tables and out: no faster than at the mean, no slower than all at the longest."""
    longest = replace(batch, decode_context_tokens=batch.num_decodes * batch.max_decode_context)
    low, high = seconds(at_mean, batch, step), seconds(at_mean, longest, step)
    assert low * (1 - 1e-12) <= seconds(skewed, batch, step) <= high * (1 + 1e-12)
    if skewed.ramp(batch, step).extrapolated is False:
        assert not at_mean.ramp(batch, step).extrapolated and not at_mean.ramp(longest, step).extrapolated


@settings(max_examples=100, deadline=None)
@given(batches, st.integers(1, 300))
def test_a_stretch_is_the_sum_of_its_steps(skewed: OperatorStepTime, batch: Batch, num_steps: int) -> None:
    """INV-7: ramps add up to the steps asked for one by one; of decodes alone, also to those of the batches that the
    decision has become, and in no more ramps than the tables bend."""
    total = math.fsum(seconds(skewed, batch, k) for k in range(num_steps))
    stretch = Stretch(skewed, batch)
    assert stretch.span_s(num_steps) == pytest.approx(total, rel=1e-9)
    if not batch.chunks:
        n = batch.num_decodes
        moved = (
            Batch((), n, batch.decode_context_tokens + n * k, max_decode_context=batch.max_decode_context + k)
            for k in range(num_steps)
        )
        assert total == pytest.approx(math.fsum(seconds(skewed, each) for each in moved), rel=1e-9)
        assert len(list(stretch.pieces(0, num_steps))) <= 1 + 2 * 6  # five measured contexts and the far one, twice


def test_the_share_of_a_decision_stays(skewed: OperatorStepTime, at_mean: OperatorStepTime) -> None:
    """A chunk that repeats over growing context keeps the share of its first step, 0.5, though at the sixtieth step its
    context is nearer to the 128 tokens where it would be 0.2."""
    batch = Batch((Chunk(4, 0),), 2, 2 * 20, max_decode_context=32)
    more = US * SPEC.num_layers * 0.5 * DEVICE.cached_us * 2 * 12
    for step in (0, 7, 60):
        assert seconds(skewed, batch, step) == pytest.approx(seconds(at_mean, batch, step) + more, rel=1e-9)


@pytest.mark.parametrize("policy", ["chunked", "continuous", "static"])
def test_fast_forward_changes_nothing(skewed: OperatorStepTime, at_mean: OperatorStepTime, policy: str) -> None:
    """INV-7: the same records with fast-forward on and off, with preemptions on the way; later than at the mean where
    sequences of different length decode together, and not in a static batch, whose rows are padded alike."""
    table = table_of([0, 0, 30_000, 900_000, 2_000_000], [50, 9, 30, 70, 4], [40, 25, 1, 33, 60])
    engine = Settings(policy, "paged", 4, 110, 200, 12, block_size=16)
    on, off = (run_engine(table, engine, skewed, fast_forward).requests for fast_forward in (True, False))
    mean = run_engine(table, engine, at_mean).requests
    for name in ("first_token_ns", "last_token_ns", "end_ns"):
        assert getattr(on, name).tolist() == getattr(off, name).tolist()
    assert min(on.last_token_ns) > 0
    later = max(on.last_token_ns) - max(mean.last_token_ns)
    assert later == 0 if policy == "static" else later > 0


def test_a_scenario_switches_it(folder: Path, tmp_path: Path) -> None:
    """By default and with true the share counts where there is a table, with false it does not; true without a table is
    refused in one sentence. Tables whose own description turns theirs off (``skew_fit.enabled``, as LLMServingSim does
    for its RTX 4090) leave it aside unless the scenario says true, and the note says who decided."""
    batch = Batch((), 2, 2 * 20, max_decode_context=110)

    def of(where: Path, **more: object) -> float:
        config = {"operators": str(where), **more}
        parts = assemble.assemble(parse_scenario(small(model="tiny", step_time=config), "s.yaml", tmp_path))
        return parts.step_time.ramp(batch, 0).first_s

    assert of(folder) == of(folder, unequal_contexts=True) > of(folder, unequal_contexts=False)
    bare = write_llmservingsim(tmp_path / "bare")
    assert of(bare) == of(bare, unequal_contexts=False)
    with pytest.raises(InputError, match=r"step_time.unequal_contexts: must be .* has no skew.csv \(got true\)"):
        of(bare, unequal_contexts=True)
    with pytest.raises(InputError, match=r"step_time.unequal_contexts: "):
        of(bare, unequal_contexts="perhaps")
    told = {"skew_fit": {"enabled": False}}
    off = write_skew(write_llmservingsim(tmp_path / "off", meta=told), {(2, 0, 0): 0.5})
    on = write_skew(write_llmservingsim(tmp_path / "on", meta={"skew_fit": {"enabled": True}}), {(2, 0, 0): 0.5})
    assert of(off) == of(off, unequal_contexts=False) < of(off, unequal_contexts=True) == of(on)


@pytest.mark.parametrize("fit", [None, {}, [], {"enabled": None}, {"enabled": "false"}])
def test_only_a_plain_false_turns_a_table_off(tmp_path: Path, fit: object) -> None:
    """A description that does not say so leaves the table in use."""
    folder = write_skew(write_llmservingsim(tmp_path / "tables", meta={"skew_fit": fit}), {(2, 0, 0): 0.5})
    assert load_operators(folder, SPEC, 1).uses_skew
    assert "a measured share" in step_time(folder).source.note
    off = write_skew(write_llmservingsim(tmp_path / "off", meta={"skew_fit": {"enabled": False}}), {(2, 0, 0): 0.5})
    tables = load_operators(off, SPEC, 1)
    note = OperatorStepTime(tables, SPEC, unequal_contexts=tables.uses_skew).source.note
    assert "left out as the tables' meta.yaml says" in note
