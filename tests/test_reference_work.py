"""The fixed piece of work that tells how fast the machine was: timed beside calibrations and runs, never used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simserve.recorded.engine_run import from_engine_run
from simserve.recorded.run import RecordedRun
from simserve.recorded.steps import EngineRun, ServedRequest, Setting, Stamp
from simserve.scenario import Scenario
from simserve.scenario.load import parse_scenario
from simserve.step_time.profile_schema import Profile
from simserve.validate import speed
from simserve.validate.speed import machine_notes
from tests.profile_builders import make_profile

PROFILE = make_profile()


def run_with(told: Setting) -> RecordedRun:
    """One request on an engine that told so."""
    moments = Stamp(1.0, 1.0), Stamp(2.0, 2.0)
    served = ServedRequest(0, 4, 2, 0, Stamp(0.0, 0.0), Stamp(0.0, 0.0), moments)
    return from_engine_run(EngineRun("an engine", {}, {"reference_s": told}, (served,), ()), "run-1.jsonl")


def scenario(**step_time: object) -> Scenario:
    """One request of a tiny model."""
    return parse_scenario(
        {
            "name": "one",
            "model": "tiny",
            "step_time": step_time,
            "workload": {
                "num_requests": 1,
                "arrivals": {"process": "all_at_once"},
                "prompt_tokens": {"fixed": 4},
                "output_tokens": {"fixed": 2},
            },
            "engine": {"policy": "continuous", "max_num_seqs": 1, "kv_cache": {"allocator": "paged", "num_blocks": 9}},
        }
    )


def profile_that_took(seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """A scenario whose profile was measured beside work of so many seconds."""
    made = PROFILE.provenance.model_copy(update={"reference_s": seconds})
    profile: Profile = PROFILE.model_copy(update={"provenance": made})
    monkeypatch.setattr(speed, "load_profile", lambda *_: profile)
    return scenario(profile="made.json")


def test_a_faster_machine_is_said_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 ms beside the calibration, 9.5, 9.6 and 9.9 beside the runs: 4 % less in the middle."""
    runs = [run_with(0.0095), run_with(0.0096), run_with(0.0099)]
    (note,) = machine_notes(profile_that_took(0.010, monkeypatch), runs)
    assert "took 4.0 % less time beside the runs" in note and "no figure here is corrected" in note
    assert "(−5.0 %, −4.0 %, −1.0 %)" in note
    (slower,) = machine_notes(profile_that_took(0.010, monkeypatch), [run_with(0.0105)])
    assert "took 5.0 % more time" in slower and "(+5.0 %)" in slower


@pytest.mark.parametrize("told", [None, True, "0.01", 0.0, -1.0])
def test_who_tells_nothing_is_not_compared(told: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs recorded before, or a profile measured before, or elsewhere: no note, and no other figure changes."""
    assert run_with(told).reference_s is None
    assert not list(machine_notes(profile_that_took(0.010, monkeypatch), [run_with(told)]))


def test_without_a_profile_that_tells_there_is_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A roofline is no measurement; a profile that was measured before this was timed tells nothing."""
    assert not list(machine_notes(scenario(roofline="laptop-cpu", dtype="fp32"), [run_with(0.01)]))
    assert not list(machine_notes(profile_that_took(None, monkeypatch), [run_with(0.01)]))


def test_the_work_is_the_same_whenever_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readings a moment apart by the CPU clock are of one work; a GPU has none."""
    pytest.importorskip("torch")
    import torch

    from calibrate import reference

    monkeypatch.setattr(reference, "_HEIGHT", 512)
    threads = torch.get_num_threads()
    readings = [reference.reference_s("process_cpu", 1) for _ in range(2)]
    assert torch.get_num_threads() == threads
    taken = np.array(readings, float)
    assert taken.min() > 0 and taken.max() < 3 * taken.min()
    assert reference.reference_s("cuda_events", 1) is None


def test_a_run_in_process_tells_it_and_keeps_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What serves a job times the work beside the run, and nothing else of the run is touched."""
    pytest.importorskip("transformers")
    from calibrate import reference
    from calibrate.replay.ask import AskedRequest, ReplaySettings
    from calibrate.replay.serve import ServeJob, serve
    from simserve.recorded.steps import read_engine_run, write_engine_run

    monkeypatch.setattr(reference, "_HEIGHT", 64)
    asked = (AskedRequest(0, (5, 6, 7), 2, 0.0), AskedRequest(1, (5, 6), 3, 0.0))
    settings = ReplaySettings(2, 64, 32, num_blocks=8, block_size=16)
    run = serve(lambda _: None, ServeJob("generate", "tiny", "cpu", "fp32", settings, asked, "process_cpu"))
    write_engine_run(tmp_path / "run-1.jsonl", run)
    again = from_engine_run(read_engine_run(tmp_path / "run-1.jsonl"), "run-1.jsonl")
    assert again.reference_s == run.settings["reference_s"] and again.reference_s is not None
    assert {"reference_s": again.reference_s, **settings.told(), "clock": "process_cpu"} == dict(run.settings)
    assert "reference_s" not in again.settings
