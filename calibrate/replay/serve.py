"""One run of one engine from nothing: build it, warm it up, serve. What a fresh process is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from calibrate.model import build_model, find_model
from calibrate.reference import reference_s
from calibrate.replay.ask import AskedRequest, ReplaySettings
from calibrate.replay.driver import ReplayEngine, RunClock, replay
from simserve.recorded.steps import EngineRun

ServedBy = Literal["transformers", "generate", "vllm"]
_WARM_UP_TOKENS = 16
_SHORT_RUN_S = 20.0


@dataclass(frozen=True)
class ServeJob:
    """Which engine, on which model, set up how, over which requests; ``python`` is the interpreter that has vLLM."""

    engine: ServedBy
    model: str
    device: str
    dtype: str
    settings: ReplaySettings
    requests: tuple[AskedRequest, ...]
    clock: RunClock
    python: Path | None = None


def serve(tell: Callable[[int], None], job: ServeJob) -> EngineRun:
    """The run; ``tell`` hears how many requests have ended. Before it one of the first requests, and if that tells that
    it will be short, the whole of it once: a step of so many tokens as never before costs a small model a tenth more,
    and a large one nothing that would be seen. Beside it the reference work is timed, in whose setting ``reference_s``
    it is told. Raises ``CalibrationError``."""
    fresh, stop = _starter(job)
    try:
        first = warm_up(job)
        took_s = replay(fresh(), first, job.clock).steps[-1].end.wall_s
        if took_s * _num_tokens(job.requests) / _num_tokens(first) <= _SHORT_RUN_S:
            replay(fresh(), job.requests, job.clock)
        clock = "cuda_events" if job.device == "cuda" else job.clock
        before_s = reference_s(clock, job.settings.threads)
        run = replay(fresh(), job.requests, job.clock, tell)
        after_s = reference_s(clock, job.settings.threads)
        if before_s is None or after_s is None:
            return run
        return replace(run, settings={**run.settings, "reference_s": (before_s + after_s) / 2})
    finally:
        stop()


def warm_up(job: ServeJob) -> list[AskedRequest]:
    """The first requests, two for every slot, all at once and cut short: each kernel has run when the clock starts."""
    first = job.requests[: 2 * job.settings.max_num_seqs]
    return [
        replace(each, num_output_tokens=min(each.num_output_tokens, _WARM_UP_TOKENS), arrival_s=0.0, at_step=None)
        for each in first
    ]


def _num_tokens(requests: Sequence[AskedRequest]) -> int:
    return sum(len(each.prompt) + each.num_output_tokens for each in requests)


def _starter(job: ServeJob) -> tuple[Callable[[], ReplayEngine], Callable[[], None]]:
    """What gives the engine as if nothing had run on it yet, and what lets go of it."""
    source = find_model(job.model)
    if job.engine == "vllm":
        from calibrate.replay.vllm_replay import VllmReplay

        assert job.python is not None
        vllm = VllmReplay(job.python, source.spec, job.dtype, job.settings)

        def forgetful() -> ReplayEngine:
            vllm.forget_prefixes()
            return vllm

        return forgetful, vllm.stop
    from calibrate.replay.continuous import TransformersReplay
    from calibrate.replay.static import StaticReplay

    model = build_model(source, job.device, job.dtype, "sdpa", 0)
    made = StaticReplay if job.engine == "generate" else TransformersReplay
    return lambda: made(model, job.settings), lambda: None
