"""Clocks: which one is the step time, and that a GPU is timed from an idle device to its last kernel."""

from __future__ import annotations

import time

import pytest

from calibrate.clock import Timing, choose_clock, time_on_cpu, time_on_cuda


def test_the_clock_fits_the_device() -> None:
    """One CPU thread: the process CPU clock. More: CPU seconds add up, so the wall. A GPU: its own events."""
    assert choose_clock("cpu", 1)[0] == "process_cpu"
    assert choose_clock("cpu", 4)[0] == "wall"
    assert choose_clock("cuda", 1)[0] == "cuda_events"


def test_a_timing_answers_by_clock() -> None:
    """The device's events where they are asked for and exist."""
    timing = Timing(3.0, 2.0, 1.0)
    assert [timing.by(clock) for clock in ("wall", "process_cpu", "cuda_events")] == [3.0, 2.0, 1.0]


def test_sleeping_is_wall_time_and_not_cpu_time() -> None:
    """That is the point of the CPU clock: time that others have does not count."""
    timing = time_on_cpu(lambda: time.sleep(0.05))
    assert timing.wall_s >= 0.05
    assert timing.cpu_s < 0.04
    assert timing.cuda_s is None


def test_working_is_cpu_time() -> None:
    """A loop of 20 ms of CPU time takes about that on the CPU clock, and at least that on the wall."""

    def work() -> None:
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass

    timing = time_on_cpu(work)
    assert 0.02 <= timing.cpu_s < 0.04
    assert timing.wall_s >= timing.cpu_s * 0.99


def test_cuda_events_bracket_the_step_on_an_idle_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Order: wait until idle, record, step, record, wait for the second event; milliseconds become seconds."""
    torch = pytest.importorskip("torch")
    calls: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("wait for event")

        def elapsed_time(self, other: object) -> float:
            assert isinstance(other, Event)
            return 12.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait for device"))
    timing = time_on_cuda(lambda: calls.append("step"))
    assert calls == ["wait for device", "record", "step", "record", "wait for event"]
    assert timing.cuda_s == 0.0125
    assert timing.host_s is not None and 0 <= timing.host_s <= timing.wall_s
