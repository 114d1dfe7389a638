"""``simserve capacity``: rows over variants and settings, sorted by what they cost, as one document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simserve.capacity.row import Asked, capacity_row, no_answer
from simserve.knee.find import calibration_notes
from simserve.knee.probe import Probe
from simserve.knee.saturation import StudyError
from simserve.knee.study import Study
from simserve.tasks.runner import Runner

KIND = "simserve capacity"
Settings = Mapping[str, Any]


def find_capacities(study: Study, runner: Runner, asked: Asked, settings: Sequence[Settings]) -> dict[str, Any]:
    """The content of ``capacity.json`` for every variant with every setting. Raises InputError."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    failed: list[StudyError] = []
    for setting in settings:
        changed = study.with_settings(setting) if setting else study
        for variant in changed.variants:
            probe = Probe(changed, variant, runner)
            try:
                row, found = capacity_row(probe, setting, asked)
            except StudyError as error:
                failed.append(error)
                row, found = no_answer(probe, setting, asked, str(error)), []
            rows.append(row)
            notes += found
    if len(failed) == len(rows):
        raise failed[0]
    return capacity_document(study, asked, rows, notes)


def capacity_document(
    study: Study, asked: Asked, rows: Sequence[dict[str, Any]], notes: Sequence[str]
) -> dict[str, Any]:
    """Rows and what was asked, sorted by cost where there is a price, else by capacity."""
    return {
        "schema_version": 1,
        "kind": KIND,
        "scenario": study.scenario.name,
        "model": study.scenario.model,
        "load": study.axis.as_dict(),
        "slos": [{"metric": slo.metric, "limit": slo.limit, "text": slo.text} for slo in asked.slos],
        "target_rps": asked.question.target_rps,
        "price_per_gpu_hour": asked.question.price_per_gpu_hour,
        "tolerance": asked.effort.tolerance,
        "rows": sorted(rows, key=rank),
        "notes": list(dict.fromkeys([*study.notes, *notes, *calibration_notes(_spreads(rows))])),
    }


def rank(row: Mapping[str, Any]) -> tuple[float, float]:
    """Sorts rows: the cheapest million of output tokens first, then the largest capacity; no capacity comes last."""
    cost, capacity = row["cost_per_million_output_tokens"], row["capacity"]["value"]
    return (
        math.inf if cost is None or cost["value"] is None else cost["value"],
        math.inf if capacity is None else -capacity,
    )


def _spreads(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The largest noise of calibration among each variant's settings."""
    spreads: dict[str, float] = {}
    for row in rows:
        name, spread = row["variant"], row["saturation"]["calibration_spread"]
        spreads[name] = max(spreads.get(name, 0.0), spread)
    return spreads
