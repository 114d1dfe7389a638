"""The loop that serves a list of requests on an engine, and the face that an engine shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from calibrate.clock import Timing
from calibrate.errors import CalibrationError
from calibrate.replay.ask import AskedRequest, ReplaySettings
from calibrate.replay.ledger import Ledger, Taken
from simserve.recorded.steps import START, EngineRun, Stamp

RunClock = Literal["process_cpu", "wall"]


@dataclass(frozen=True)
class EngineIdentity:
    """Which engine serves: its name and the versions that matter."""

    engine: str
    versions: dict[str, str]


class ReplayEngine(Protocol):
    """A serving engine, started, that takes requests and steps."""

    settings: ReplaySettings
    identity: EngineIdentity

    def add(self, asked: AskedRequest) -> Timing:
        """Hand a request over; what taking it in cost."""

    def is_ready(self, more_coming: bool) -> bool:
        """Whether it would take a step now; ``more_coming`` tells one that collects a group whether to wait."""

    def step(self) -> list[Taken]:
        """Take a step, or all those of one group that cannot be interrupted."""

    def stop(self) -> None:
        """Let go of it; may be called twice."""


def replay(
    engine: ReplayEngine,
    requests: Sequence[AskedRequest],
    clock: RunClock = "process_cpu",
    on_progress: Callable[[int], None] = lambda num_ended: None,
) -> EngineRun:
    """Serve ``requests`` and return all that happened. ``clock`` is the one on which arrival times are meant; it stands
    still between steps and jumps over idle time. ``on_progress`` is told how many requests have ended.

    Raises ``CalibrationError`` if requests are not numbered from 0 in the order of their coming, or if the engine takes
    a step that serves nobody, or ends a request too early or too late.
    """
    ledger, now = Ledger(), START
    coming = sorted(requests, key=lambda asked: (asked.at_step or 0, asked.arrival_s, asked.id), reverse=True)
    if [asked.id for asked in reversed(coming)] != list(range(len(coming))):
        raise CalibrationError("requests: their ids must count from 0 in the order in which they come")
    while coming or ledger.num_unfinished:
        while coming and _is_due(coming[-1], ledger.num_steps, _read(now, clock)):
            asked = coming.pop()
            ledger.added(asked, _arrival(asked, ledger, now, clock))
            now = _after(now, engine.add(asked))
        if engine.is_ready(bool(coming)):
            for taken in engine.step():
                now = ledger.stepped(taken, now)
            on_progress(ledger.num_finished)
        elif coming:
            now = _jump(now, coming, clock)
        else:
            raise CalibrationError(f"engine: has {ledger.num_unfinished} requests left and takes no step for them")
    told = {**engine.settings.told(), "clock": clock}
    return EngineRun(engine.identity.engine, engine.identity.versions, told, ledger.requests(), tuple(ledger.steps))


def _read(now: Stamp, clock: RunClock) -> float:
    return now.cpu_s if clock == "process_cpu" else now.wall_s


def _is_due(asked: AskedRequest, num_steps: int, now_s: float) -> bool:
    return num_steps >= asked.at_step if asked.at_step is not None else now_s >= asked.arrival_s


def _after(now: Stamp, timing: Timing) -> Stamp:
    return Stamp(now.cpu_s + timing.cpu_s, now.wall_s + timing.wall_s)


def _jump(now: Stamp, coming: list[AskedRequest], clock: RunClock) -> Stamp:
    """Idle until the next one comes, on both clocks alike; who comes at a step that nobody will take comes now."""
    following = coming.pop()
    if following.at_step is not None:
        coming.append(AskedRequest(following.id, following.prompt, following.num_output_tokens, at_step=0))
        return now
    coming.append(following)
    idle_s = following.arrival_s - _read(now, clock)
    return Stamp(now.cpu_s + idle_s, now.wall_s + idle_s)


def _arrival(asked: AskedRequest, ledger: Ledger, now: Stamp, clock: RunClock) -> Stamp:
    """When it came: on the clock of its time exactly, on the other one in proportion within the step under way."""
    before = ledger.last_begin
    if asked.at_step is not None or _read(now, clock) <= _read(before, clock):
        return now
    share = (asked.arrival_s - _read(before, clock)) / (_read(now, clock) - _read(before, clock))
    share = min(1.0, max(0.0, share))
    moment = Stamp(*(b + share * (n - b) for b, n in zip(before, now, strict=True)))
    exact = {"cpu_s" if clock == "process_cpu" else "wall_s": asked.arrival_s}
    return moment._replace(**exact)
