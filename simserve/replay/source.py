"""What to send: the requests of a trace in any format we read, or of a scenario."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from simserve.clients.plan import ClientPlan
from simserve.replay.errors import ReplayError
from simserve.request import RequestTable
from simserve.scenario import SloConfig, TraceWorkload, load_scenario
from simserve.scenario.messages import one_sentence, printable
from simserve.workload import build_workload
from simserve.workload.content import taken
from simserve.workload.trace import MAX_SPAN_S

SCENARIO_SUFFIXES = (".yaml", ".yml")
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class SourceChoices:
    """Which requests: ``overrides`` and ``seed`` are a scenario's, ``format`` is a trace's. ``limit`` keeps the first
    so many; ``rate_scale`` 2.0 sends them twice as fast."""

    path: Path
    overrides: tuple[str, ...] = ()
    seed: int | None = None
    format: str = "auto"
    limit: int | None = None
    rate_scale: float = 1.0


@dataclass(frozen=True)
class Source:
    """``described`` is for the manifest: the file's name, its SHA-256 and how it was read."""

    name: str
    table: RequestTable
    plan: ClientPlan
    slo: SloConfig
    notes: tuple[str, ...]
    described: dict[str, Any]


def load_source(choices: SourceChoices) -> Source:
    """The requests, in order of arrival. Raises InputError, one sentence: a bad file or option, or a closed loop."""
    if not (choices.rate_scale > 0 and math.isfinite(choices.rate_scale)):
        raise ReplayError(f"--rate-scale: must be a number > 0 (got {choices.rate_scale})")
    if choices.limit is not None and choices.limit < 1:
        raise ReplayError(f"--limit: must be ≥ 1 (got {choices.limit})")
    if not choices.path.exists():
        raise ReplayError(printable(f"{choices.path}: no such file; give a trace or a scenario"))
    is_scenario = choices.path.suffix.lower() in SCENARIO_SUFFIXES
    source = _scenario(choices) if is_scenario else _trace(choices)
    if source.plan.turns is not None:
        raise ReplayError(
            printable(
                f"{choices.path.name}: must have requests with times of their own, which is when a replay sends them "
                "(got sessions whose turns wait for answers); replay it in a simulation"
            )
        )
    table, notes = source.table, list(source.notes)
    if choices.limit is not None and choices.limit < len(table):
        notes.append(f"the first {choices.limit:,} of {len(table):,} requests kept (--limit)")
        table = _first(table, choices.limit)
    if choices.rate_scale != 1.0:
        scaled = table.arrival_ns / choices.rate_scale
        if scaled[-1] > MAX_SPAN_S * _NS_PER_S:
            raise ReplayError(f"--rate-scale: must keep the replay within {MAX_SPAN_S:,} s (got {choices.rate_scale})")
        table = replace(table, arrival_ns=np.rint(scaled).astype(np.int64))
    return replace(source, table=table, notes=tuple(notes))


def _scenario(choices: SourceChoices) -> Source:
    if choices.format != "auto":
        raise ReplayError("--format: must be left out with a scenario, which says it itself (--set workload.format=…)")
    seeds = () if choices.seed is None else (f"seed={choices.seed}",)
    scenario = load_scenario(choices.path, (*choices.overrides, *seeds))
    if scenario.workload.concurrency is not None:
        raise ReplayError(
            f"{scenario.source}: workload.concurrency: must be absent, for a replay sends each request at its own time "
            f"(got {scenario.workload.concurrency:,}); give workload.arrivals instead"
        )
    workload = build_workload(scenario.workload, scenario.seed, scenario.base_dir)
    described = {
        **_described(choices),
        "seed": scenario.seed,
        "workload": scenario.workload.model_dump(mode="json", exclude_unset=True),
    }
    return Source(scenario.name, workload.table, workload.clients, scenario.slo, workload.notes, described)


def _trace(choices: SourceChoices) -> Source:
    if choices.overrides or choices.seed is not None:
        option = "--set" if choices.overrides else "--seed"
        raise ReplayError(f"{option}: must be left out with a trace, which has no keys and no seed; give a scenario")
    try:
        config = TraceWorkload.model_validate({"trace": choices.path.name, "format": choices.format})
    except ValidationError as error:
        raise ReplayError(one_sentence(error, TraceWorkload, "--format")) from None
    workload = build_workload(config, 0, choices.path.parent)
    name = re.sub(r"[^\w.=+-]+", "-", choices.path.name.partition(".")[0] or "trace")
    return Source(name, workload.table, workload.clients, SloConfig(), workload.notes, _described(choices))


def _described(choices: SourceChoices) -> dict[str, Any]:
    return {
        "file": printable(choices.path.name),
        "sha256": hashlib.sha256(choices.path.read_bytes()).hexdigest(),
        "format": choices.format,
        "overrides": list(choices.overrides),
        "limit": choices.limit,
        "rate_scale": choices.rate_scale,
    }


def _first(table: RequestTable, n: int) -> RequestTable:
    columns = {field.name: getattr(table, field.name) for field in fields(table)}
    cut: dict[str, Any] = {name: column[:n] for name, column in columns.items() if isinstance(column, np.ndarray)}
    if table.content is not None:
        cut["content"] = taken(table.content, np.arange(n))
    if table.tenants is not None:
        cut["tenants"] = replace(table.tenants, of=table.tenants.of[:n])
    return replace(table, **cut)
