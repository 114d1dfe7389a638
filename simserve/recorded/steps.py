"""What a serving engine did, step by step and request by request, real or simulated; a JSON-lines file or one ``.gz``.

Times are seconds from the start of a run on two clocks, since under one thread the CPU clock tells the work and the
wall clock what a client saw. A simulation has one clock and writes it as both.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from simserve.errors import RunError

SCHEMA_VERSION = 1
Setting = int | float | str | bool | None


class Stamp(NamedTuple):
    """One moment by the CPU clock of the process that serves, and by the wall clock (s)."""

    cpu_s: float
    wall_s: float


START = Stamp(0.0, 0.0)


class Prefill(NamedTuple):
    """A sequence that computes tokens it knows already: of the prompt, or, after a preemption, of what it had made."""

    id: int
    num_new_tokens: int
    num_context_tokens: int


class Decode(NamedTuple):
    """A sequence that computes its latest token alone, over what it has in the cache."""

    id: int
    num_context_tokens: int


@dataclass(frozen=True)
class StepRecord:
    """One step: its members by id, what led to it, and the cache as its members' room is handed out.

    ``num_batched_tokens`` counts padding; ``free_blocks`` is None where the cache has none.
    """

    prefills: tuple[Prefill, ...]
    decodes: tuple[Decode, ...]
    admitted: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()
    num_batched_tokens: int = 0
    free_blocks: int | None = None
    begin: Stamp = START
    end: Stamp = START


@dataclass(frozen=True)
class ServedRequest:
    """One request as it went. ``added_at_step`` counts the steps begun before the engine was told of it; ``tokens``
    are the moments at which its output tokens were there."""

    id: int
    num_prompt_tokens: int
    num_output_tokens: int
    added_at_step: int
    arrival: Stamp
    first_scheduled: Stamp
    tokens: tuple[Stamp, ...]
    num_preemptions: int = 0


@dataclass(frozen=True)
class EngineRun:
    """One run of one engine: its name and versions, what it was told (field words), and all that happened."""

    engine: str
    versions: Mapping[str, str]
    settings: Mapping[str, Setting]
    requests: tuple[ServedRequest, ...]
    steps: tuple[StepRecord, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def num_preemptions(self) -> int:
        """How often a sequence lost its place."""
        return sum(len(step.preempted) for step in self.steps)


def write_engine_run(path: Path, run: EngineRun) -> None:
    """Write ``run``: a line that says what it is, one per request, one per step; compressed if ``path`` ends so."""
    head = {"kind": "engine run", "schema_version": SCHEMA_VERSION, "engine": run.engine}
    head |= {"versions": dict(run.versions), "settings": dict(run.settings), "notes": list(run.notes)}
    lines = [head, *({"request": asdict(served)} for served in run.requests)]
    lines += ({"step": asdict(step)} for step in run.steps)
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_engine_run(path: Path) -> EngineRun:
    """Read what ``write_engine_run`` wrote. Raises ``RunError`` in one sentence if it is no such file."""
    try:
        lines = list(_objects(path))
        head = lines[0] if lines else {}
        if head.get("kind") != "engine run" or head.get("schema_version") != SCHEMA_VERSION:
            raise RunError(f"{path}: must be an engine run of schema version {SCHEMA_VERSION}; record it again")
        return EngineRun(
            engine=head["engine"],
            versions=head["versions"],
            settings=head["settings"],
            requests=tuple(_request(line["request"]) for line in lines[1:] if "request" in line),
            steps=tuple(step_from(line["step"]) for line in lines[1:] if "step" in line),
            notes=tuple(head["notes"]),
        )
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise RunError(f"{path}: must hold an engine run, one object a line (got {error!s:.80})") from error


def step_from(told: Mapping[str, Any]) -> StepRecord:
    """A step from its JSON object."""
    return StepRecord(
        prefills=tuple(Prefill(*work) for work in told["prefills"]),
        decodes=tuple(Decode(*work) for work in told["decodes"]),
        admitted=tuple(told["admitted"]),
        preempted=tuple(told["preempted"]),
        num_batched_tokens=told["num_batched_tokens"],
        free_blocks=told["free_blocks"],
        begin=Stamp(*told["begin"]),
        end=Stamp(*told["end"]),
    )


def _request(told: Mapping[str, Any]) -> ServedRequest:
    stamps = {name: Stamp(*told[name]) for name in ("arrival", "first_scheduled")}
    return ServedRequest(**{**told, **stamps, "tokens": tuple(Stamp(*moment) for moment in told["tokens"])})


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    for line in (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines():
        told = json.loads(line)
        if not isinstance(told, dict):
            raise ValueError(line)
        yield told
