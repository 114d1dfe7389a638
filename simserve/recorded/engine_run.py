"""A run of an engine in process, with each of its steps, as a recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from simserve.distributions import FloatColumn
from simserve.recorded.run import RecordedRun, Stamps, recorded_run
from simserve.recorded.steps import EngineRun, ServedRequest, Setting, read_engine_run

FORMAT = "engine-run"
STATIC = "transformers generate"
Clock = Literal["cpu", "wall"]


def read(path: Path, clock: Clock = "cpu") -> RecordedRun:
    """The run of a file that ``write_engine_run`` wrote."""
    return from_engine_run(read_engine_run(path), path.name, clock)


def from_engine_run(run: EngineRun, source: str, clock: Clock = "cpu") -> RecordedRun:
    """A run by one of its two clocks. ``steps`` keep the ids of the run, which ``file_rows`` are. Of static batching an
    answer is delivered when its group ends."""
    served = sorted(run.requests, key=lambda each: each.id)
    tokens = [_seconds(each, clock) for each in served]
    stamps = Stamps(
        arrival_s=np.array([getattr(each.arrival, f"{clock}_s") for each in served], np.float64),
        first_token_s=np.array([times[0] if len(times) else np.nan for times in tokens], np.float64),
        last_token_s=np.array([times[-1] if len(times) else np.nan for times in tokens], np.float64),
        num_prompt_tokens=np.array([each.num_prompt_tokens for each in served], np.int64),
        num_output_tokens=np.array([each.num_output_tokens for each in served], np.int64),
        first_scheduled_s=np.array([getattr(each.first_scheduled, f"{clock}_s") for each in served], np.float64),
        end_s=_group_ends(run, served, clock) if run.engine == STATIC else None,
    )
    return recorded_run(
        source,
        FORMAT,
        stamps,
        num_preemptions=run.num_preemptions,
        itl_s=np.concatenate([np.diff(times) for times in tokens]) if tokens else np.zeros(0),
        steps=run.steps,
        arrived_step=np.array([each.added_at_step for each in served], np.int64),
        engine=", ".join([run.engine, *(f"{name} {version}" for name, version in run.versions.items())]),
        notes=(*run.notes, _clocks(run, source)),
        reference_s=_number(run.settings.get("reference_s")),
        settings={key: value for key, value in run.settings.items() if key.startswith("engine.") and value is not None},
    )


def _number(told: Setting) -> float | None:
    return float(told) if isinstance(told, float | int) and not isinstance(told, bool) and told > 0 else None


def _clocks(run: EngineRun, source: str) -> str:
    """Both clocks beside each other: they part where neighbours were busy."""
    ends = [step.end for step in run.steps]
    cpu_s, wall_s = (max((getattr(end, name) for end in ends), default=0.0) for name in ("cpu_s", "wall_s"))
    return f"{source}: {cpu_s:.3f} s by the CPU clock of its process, {wall_s:.3f} s by the wall clock"


def _group_ends(run: EngineRun, served: Sequence[ServedRequest], clock: Clock) -> FloatColumn:
    """When each request's group had its last step: groups begin at steps that prefill."""
    ends: dict[int, float] = {}
    group: list[int] = []
    for step in run.steps:
        if step.prefills:
            group = [work.id for work in step.prefills]
        ends |= dict.fromkeys(group, getattr(step.end, f"{clock}_s"))
    return np.array([ends.get(each.id, np.nan) for each in served], np.float64)


def _seconds(served: ServedRequest, clock: Clock) -> FloatColumn:
    return np.array([getattr(moment, f"{clock}_s") for moment in served.tokens], np.float64)
