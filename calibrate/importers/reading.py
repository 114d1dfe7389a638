"""What an importer read: whole steps and their seconds, whatever the format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from simserve.request import Batch
from simserve.step_time.source import MeasuredPoint

# What a measured prefill time is: a step of the engine, or a time to first token, which holds a request's own work too.
PrefillTimes = Literal["step", "ttft"]


@dataclass(frozen=True)
class Reading:
    """Steps as read from files.

    ``points`` are prefills of one sequence and decodes of equal contexts; ``mixed`` are steps of both kinds, which a
    profile composes and can be compared with. What the files say of themselves (``None``: nothing) is a default for
    what the user leaves out; ``notes`` tell the reader of the profile what its figures are.
    """

    points: tuple[MeasuredPoint, ...]
    mixed: tuple[tuple[Batch, float], ...] = ()
    notes: tuple[str, ...] = ()
    model: str | None = None
    device_name: str | None = None
    dtype: str | None = None
    tensor_parallel: int | None = None
    source: str | None = None
    date: str | None = None


@dataclass(frozen=True)
class ImportOptions:
    """What the user says about the files; ``None`` leaves it to the files.

    ``model``: a catalogue name or a path to a ``config.json``; ``device_name``: the chip, in words; ``source``: the
    publication and licence; ``name``: of the profile; ``command``: what was typed, for the provenance.
    """

    name: str
    model: str | None = None
    device_name: str | None = None
    device: Literal["cuda", "cpu"] = "cuda"
    dtype: str | None = None
    tensor_parallel: int | None = None
    source: str | None = None
    date: str | None = None
    prefill_times: PrefillTimes = "step"
    notes: tuple[str, ...] = field(default=())
    command: str = ""
