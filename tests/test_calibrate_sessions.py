"""Calibrations in several processes: what comes together, and that no process counts more than another."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")  # calibrate is what needs it
pytest.importorskip("transformers")

from rich.console import Console

from calibrate import sessions
from calibrate.errors import CalibrationError
from calibrate.fit import pooled_medians
from calibrate.fresh import in_fresh_process
from calibrate.grid import Point
from calibrate.options import CalibrateOptions, Reach
from calibrate.sessions import calibrate_in_sessions
from simserve.errors import ModelError
from simserve.step_time.profile_schema import load_profile
from tests.fresh_work import fails, told
from tests.profile_builders import make_sample


def test_work_in_a_fresh_process_tells_and_answers() -> None:
    """What is told comes in order, before the answer, which is of another process."""
    letters: list[str] = []
    pid, name = in_fresh_process(told, "abc", on_progress=letters.append)
    assert (pid != os.getpid(), name, letters) == (True, "abc", ["a", "b", "c"])


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("input", ModelError, "model: 'x' is unknown"),
        ("killed", CalibrationError, r"must answer before it ends \(got exit code 9\)"),
        ("defect", CalibrationError, r"must answer before it ends \(got exit code 1\)"),
    ],
)
def test_what_goes_wrong_there_is_raised_here(kind: str, error: type[Exception], words: str) -> None:
    """One sentence, whichever way it ended; nobody waits for ever."""
    with pytest.raises(error, match=words):
        in_fresh_process(fails, kind, on_progress=lambda *_: None)


def test_medians_over_sessions_are_of_their_medians() -> None:
    """Three processes of 10, 12 and 30 ms, however many samples each took: 12 ms. A session of held-out points alone
    is a second measurement of them, not part of the fit."""
    point, held = Point("decode", 2, 1, 16), Point("decode", 3, 1, 20, True)
    many = [make_sample(point, 0.010)] * 9
    later = [make_sample(point, s).model_copy(update={"session": i}) for i, s in ((1, 0.012), (2, 0.030))]
    assert pooled_medians([*many, *later], "process_cpu") == {point: 0.012}
    again = make_sample(held, 0.9).model_copy(update={"session": 1})
    first = [make_sample(point, 0.010), make_sample(held, 0.5)]
    assert pooled_medians([*first, again], "process_cpu") == {point: 0.010, held: 0.5}


def test_a_calibration_within_a_reach_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes measure every point of the reach, the held-out ones too, and the profile says so."""
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 2)
    options = CalibrateOptions(
        model="tiny", device="cpu", dtype="fp32", engine="generate", reach=Reach(2, 6, 12, 20), command="test"
    )
    printed = io.StringIO()
    path = calibrate_in_sessions(options, tmp_path / "tiny.json", Console(file=printed, width=200))
    profile = load_profile(path)
    assert "points, about" in printed.getvalue() and "2 processes in all" in printed.getvalue()
    assert profile.provenance.source is not None and profile.provenance.source.startswith("transformers generate")
    assert profile.provenance.notes[0] == "measured in 2 processes, medians over them"
    shapes = [{s.shape for s in profile.samples if s.session == number} for number in (0, 1)]
    assert shapes[0] == shapes[1] and profile.noise is not None and profile.noise.num_sessions == 2
    assert profile.held_out.decode.noise is not None
    assert profile.validity.max_batch_size == 2 and profile.validity.max_decode_context == 20
    assert profile.repeated is not None and profile.repeated.batch_sizes == (1, 2)
    samples = [*profile.samples, *profile.repeated.samples]
    assert sorted(sample.order for sample in samples) == list(range(len(samples)))
    assert not list(tmp_path.glob("*partial*"))
