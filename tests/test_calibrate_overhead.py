"""A profile of bare forwards with an engine's overhead: recovered when it is there, judged on steps not fitted."""

from __future__ import annotations

import io
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.command import calibrate
from calibrate.engines.add_overhead import with_overhead
from calibrate.engines.engine import shape_of
from calibrate.engines.overhead import Overhead, fit_overhead
from calibrate.errors import CalibrationError
from calibrate.fit_mixed import batch_of
from calibrate.grid import Point
from calibrate.measure import Measurement
from calibrate.options import CalibrateOptions
from calibrate.profile_file import assemble
from simserve.errors import InputError, ProfileError
from simserve.model_spec import load_model_spec
from simserve.request import Batch
from simserve.step_time.composition import ComposedSteps
from simserve.step_time.draws import ProfileDraws
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import load_profile
from tests.profile_builders import make_profile, make_profile_text, make_provenance, make_sample

BARE = make_profile()
STEPS = ComposedSteps(BARE.prefill, BARE.decode, BARE.mixed)
POINTS = [
    *(Point("decode", batch, 1, context) for batch in (1, 2, 4, 8, 16) for context in (1, 128, 1024)),
    *(Point("prefill", 1, new, context) for new in (1, 8, 64, 512) for context in (0, 256)),
    Point("decode", 12, 1, 128, True),
    Point("decode", 2, 1, 1024, True),
    Point("prefill", 1, 64, 1024, True),
]


def engine_seconds(overhead: Overhead) -> dict[Point, float]:
    """What an engine with exactly this overhead takes."""
    return {point: STEPS.ramp(batch_of(point), 0).first_s + overhead.of(shape_of(point)) for point in POINTS}


def test_pairs_of_different_sequences_are_what_a_shared_mask_wastes() -> None:
    """Counted by hand: two decodes over 10 and 20 tokens attend to each other's 11 and 21 keys; one prompt wastes
    nothing; a chunk of 4 over 6 beside a decode over 9 wastes 4 · 10 + 1 · 10 pairs."""
    pair = Overhead(0.0, 0.0, 1.0)
    assert pair.of(((1, 10), (1, 20))) == 11 + 21
    assert pair.of(((8, 40),)) == 0
    assert pair.of(((1, 9), (4, 6))) == 4 * 10 + 1 * 10
    assert Overhead(3.0, 0.5).of(((1, 9), (4, 6))) == 4.0


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-5, 1e-2), st.sampled_from([0.0, 2e-5, 3e-4]), st.sampled_from([0.0, 1e-9, 5e-8]))
def test_an_overhead_that_is_there_is_recovered(constant: float, per_sequence: float, per_pair: float) -> None:
    """Exact steps give back all three parts to 1 %, and nothing where there is nothing."""
    true = Overhead(constant, per_sequence, per_pair)
    found = fit_overhead(engine_seconds(true), STEPS)
    for got, want in zip(astuple(found), astuple(true), strict=True):
        assert got == pytest.approx(want, rel=0.01, abs=1e-12 + 1e-4 * want)


def test_held_out_steps_are_not_fitted() -> None:
    """Whatever the held-out steps took, the fit is the same."""
    medians = engine_seconds(Overhead(1e-3))
    wild = {point: seconds * (100 if point.held_out else 1) for point, seconds in medians.items()}
    assert fit_overhead(wild, STEPS) == fit_overhead(medians, STEPS)


def test_an_engine_faster_than_its_own_forwards_is_refused() -> None:
    """A negative overhead is a sign of two runs that do not belong together."""
    faster = {point: 0.5 * seconds for point, seconds in engine_seconds(Overhead(0.0)).items()}
    with pytest.raises(CalibrationError, match=r"must be longer than the bare forwards"):
        fit_overhead(faster, STEPS)


def engine_run(overhead: Overhead) -> Measurement:
    return Measurement([make_sample(point, seconds) for point, seconds in engine_seconds(overhead).items()], ["busy"])


def test_the_profile_takes_the_overhead_and_says_so() -> None:
    """Tables longer by exactly the overhead, the forwards' samples untouched, the engine's samples kept beside them,
    error before and after in file and note; a report's note no longer says that the engine's work is missing."""
    made = make_provenance(load_model_spec("tiny")).model_copy(update={"source": "an engine 1.0", "origin": "engine"})
    profile, text = with_overhead(BARE, "tiny-engine", made, engine_run(Overhead(2e-3, 1e-4)))
    decode = Batch(num_decodes=4, decode_context_tokens=4 * 128)
    more = ProfileStepTime(profile).ramp(decode, 0).first_s - ProfileStepTime(BARE).ramp(decode, 0).first_s
    assert more == pytest.approx(2e-3 + 4e-4)
    assert profile.samples == BARE.samples and profile.provenance.origin == "forward"
    about = profile.overhead
    assert about is not None and len(about.samples) == len(POINTS) and about.source == "an engine 1.0"
    assert about.before.mean is not None and about.before.mean > 0.1
    assert about.after == profile.held_out.all and about.after.mean == pytest.approx(0, abs=1e-6)
    note = ProfileStepTime(profile).source.note
    assert "comes on top" not in note and "fitted on an engine 1.0" in note
    assert any("2.00 ms per step plus 0.100 ms per sequence" in n and "before" in n for n in profile.provenance.notes)
    assert "busy" in profile.provenance.notes
    assert text.endswith("}\n")


def test_draws_of_the_profile_keep_the_overhead() -> None:
    """Another run of the forwards would have had the engine's work on top just the same: the middle of many draws is
    the table, a hundred times longer than the forwards' own samples."""
    made = make_provenance(load_model_spec("tiny")).model_copy(update={"source": "an engine 1.0", "origin": "engine"})
    profile, _ = with_overhead(BARE, "tiny-engine", made, engine_run(Overhead(0.2)))
    rng = np.random.default_rng(0)
    drawn = [ProfileDraws(profile).draw(rng).decode.rows[0].seconds[0] for _ in range(101)]
    assert np.median(drawn) == pytest.approx(profile.decode.rows[0].seconds[0], rel=0.1)


def test_a_profile_without_overhead_is_as_before() -> None:
    """The field is new and optional."""
    assert BARE.overhead is None
    assert "comes on top" in ProfileStepTime(BARE).source.note


def run(options: dict[str, Any]) -> str:
    printed = io.StringIO()
    limits = {"max_batch_size": 4, "max_context": 128, "max_prefill_tokens": 16, "grid": "quick", "repeats": 2}
    calibrate(CalibrateOptions(**({"model": "tiny", "device": "cpu"} | limits | options)), Console(file=printed))
    return printed.getvalue()


def halve(path: Path) -> None:
    """The profile at ``path`` as a machine twice as fast would have measured it."""
    profile = load_profile(path)
    samples = [s.model_copy(update={"wall_s": s.wall_s / 2, "cpu_s": s.cpu_s and s.cpu_s / 2}) for s in profile.samples]
    assert profile.kv_bytes_per_token is not None
    text = assemble("bare", profile.provenance, profile.kv_bytes_per_token, Measurement(samples), 1.0)[1]
    path.write_text(text)


def test_end_to_end_on_the_tiny_model(tmp_path: Path) -> None:
    """An engine's steps are longer than half of its forwards, whatever else runs on the machine: what they take beyond
    is fitted, and with it the error on steps that were not fitted is smaller than before."""
    bare, out = tmp_path / "bare.json", tmp_path / "with.json"
    run({"out": bare})
    halve(bare)
    run({"out": out, "engine": "transformers", "overhead_for": bare})
    about = load_profile(out).overhead
    assert about is not None and about.constant_s + about.per_sequence_s > 0
    assert about.before.mean is not None and about.after.mean is not None
    assert about.after.mean < about.before.mean
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare.json", "with.json"]
    with pytest.raises(CalibrationError, match=r"must be a profile of bare forwards .got one with an overhead"):
        run({"out": tmp_path / "twice.json", "engine": "transformers", "overhead_for": out})


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"overhead_for": Path("nowhere.json")}, ProfileError, "nowhere.json: cannot be read"),
        ({"model": "25m"}, ProfileError, "must be measured on 25m"),
        ({"engine": "vllm"}, CalibrationError, "needs an engine that runs the same forwards .got vllm"),
        ({}, CalibrationError, "device_name must be that of this run"),  # "A formula" is no machine
    ],
)
def test_a_profile_that_does_not_belong_is_refused(
    options: dict[str, Any], error: type[InputError], words: str, tmp_path: Path
) -> None:
    """Before anything is measured, in one sentence."""
    path = tmp_path / "bare.json"
    path.write_text(make_profile_text()[1])
    with pytest.raises(error, match=words) as caught:
        run({"out": tmp_path / "out.json", "engine": "transformers", "overhead_for": path} | options)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]
