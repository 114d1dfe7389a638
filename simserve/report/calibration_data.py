"""What a calibration page draws, from a profile: samples by the clock that counts, points, held-out steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simserve.request import Batch, Chunk
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import Profile, Sample, Table, TableRow

SHAPE = ["phase", "batch_size", "num_new_tokens", "num_context_tokens"]
BESIDE = ["num_decodes", "num_decode_context_tokens", "context_spread"]
POINT = [*SHAPE, *BESIDE]


class HeldOutStep(NamedTuple):
    """A step that was measured but not fitted: its median, and what the other points predict."""

    phase: str
    name: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Signed: (predicted − measured) / measured."""
        return self.predicted_s / self.measured_s - 1.0


def sample_seconds(sample: Sample, clock: str) -> float:
    """A sample's step time by the profile's clock (wall where that clock was not read)."""
    if clock == "cuda_events" and sample.cuda_s is not None:
        return sample.cuda_s
    return sample.cpu_s if clock == "process_cpu" and sample.cpu_s else sample.wall_s


def sample_frame(profile: Profile) -> pd.DataFrame:
    """One row per sample, in the order of the run: its shape, ``row`` (rows of a decode, else new tokens), ``seconds``,
    ``wall_s``, ``median_s`` of its point (over clean samples, or all where it has no clean one), ``deviation`` from
    it (a share), ``other_cpus`` (NaN if unknown), ``order``, ``held_out``, ``dirty``, ``session`` and ``anchor``."""
    clock = profile.provenance.clock
    columns = [*POINT, "wall_s", "other_cpus", "order", "held_out", "dirty", "session", "anchor"]
    rows = [
        {name: getattr(sample, name) for name in columns} | {"seconds": sample_seconds(sample, clock)}
        for sample in profile.samples
    ]
    frame = pd.DataFrame(rows).sort_values("order", kind="stable", ignore_index=True)
    frame["other_cpus"] = frame["other_cpus"].astype("float64")
    frame["row"] = np.where(frame["phase"] == "decode", frame["batch_size"], frame["num_new_tokens"])
    first = (frame["session"] == 0) & ~frame["anchor"]
    frame["median_s"] = np.nan
    for counted in (first & ~frame["dirty"], first, frame["seconds"] > 0):  # the fit's own choice, or what there is
        medians = frame["seconds"].where(counted).groupby([frame[name] for name in POINT]).transform("median")
        frame["median_s"] = frame["median_s"].fillna(medians)
    frame["deviation"] = frame["seconds"] / frame["median_s"] - 1.0
    return frame


def point_frame(samples: pd.DataFrame) -> pd.DataFrame:
    """One row per measured shape: ``row``, ``median_s``, ``num_samples``, ``num_dirty``, ``spread`` (the coefficient of
    variation of its clean samples, NaN below two) and ``held_out``; by phase, row and context."""
    clean = samples[~samples["dirty"] & (samples["session"] == 0) & ~samples["anchor"]].groupby(POINT)["seconds"]
    spread = (clean.std() / clean.mean()).rename("spread")
    points = samples.groupby(POINT).agg(
        row=("row", "first"),
        median_s=("median_s", "first"),
        num_samples=("seconds", "size"),
        num_dirty=("dirty", "sum"),
        held_out=("held_out", "first"),
    )
    frame = points.join(spread).reset_index()
    return frame.sort_values(["phase", "row", "num_context_tokens"], ignore_index=True)


def held_out_steps(profile: Profile, points: pd.DataFrame) -> list[HeldOutStep]:
    """Each held-out point, predicted from the others as the calibration's own check does."""
    held = rows_of(points[points["held_out"] & (points["phase"] != "no_cache")])
    tables = {phase: _without(getattr(profile, phase), held, phase) for phase in ("prefill", "decode")}
    if not held or None in tables.values():
        return []
    steps = ProfileStepTime(profile.model_copy(update={**tables, "overhead": None}))  # samples are of bare steps
    return [HeldOutStep(p.phase, step_name(p), p.median_s, steps.ramp(batch_of(p), 0).first_s) for p in held]


def batch_of(point: Any) -> Batch:  # noqa: ANN401 - a row of a frame
    """The step of a point, as the engine of a simulation would ask for it."""
    if point.phase == "decode":
        return Batch(num_decodes=point.batch_size, decode_context_tokens=point.batch_size * point.num_context_tokens)
    chunks = (Chunk(point.num_new_tokens, point.num_context_tokens),) * point.batch_size
    context = point.num_decodes * point.num_decode_context_tokens
    return Batch(chunks=chunks, num_decodes=point.num_decodes, decode_context_tokens=context)


def step_name(step: Any) -> str:  # noqa: ANN401 - a row of either frame
    """A sample's or a point's step in words."""
    rows = f"{step.batch_size:,} × " if step.batch_size > 1 else ""
    context = f"context {step.num_context_tokens:,}"
    if step.phase == "decode":
        unequal = ", unequal" if step.context_spread > 0 else ""
        return f"decode, batch {step.batch_size:,}, {context}{unequal}"
    beside = f" beside {step.num_decodes:,} decodes over {step.num_decode_context_tokens:,}" if step.num_decodes else ""
    phase = str(step.phase).replace("_", " ")
    return f"{phase}, {rows}{step.num_new_tokens:,} tokens, {context}{beside}"


def rows_of(frame: pd.DataFrame) -> Sequence[Any]:
    """Rows of a frame as named tuples."""
    return list(frame.itertuples(index=False))


def _is_cell(point: Any) -> bool:  # noqa: ANN401 - a row of a frame
    """Whether a point is a cell of a table: no packed prompts, no unequal contexts."""
    return bool(point.context_spread == 0 and (point.phase == "decode" or point.batch_size == 1))


def _without(table: Table, held: Sequence[Any], phase: str) -> Table | None:
    """The table that the held-out points were not part of; None where too little of it remains."""
    cells = {(point.row, point.num_context_tokens) for point in held if point.phase == phase and _is_cell(point)}
    rows = []
    for row in table.rows:
        kept = [(c, s) for c, s in zip(row.contexts, row.seconds, strict=True) if (row.row, c) not in cells]
        if len(kept) > 1:
            rows.append(TableRow(row=row.row, contexts=tuple(c for c, _ in kept), seconds=tuple(s for _, s in kept)))
    return Table(rows=tuple(rows)) if len(rows) > 1 else None
