"""The document ``summary.json``: every variant's metrics under one head; same scenario and seed, same bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from simserve.manifest import resolved_scenario, step_time_entry

if TYPE_CHECKING:
    from simserve.simulate import RunResult, VariantResult

SCHEMA_VERSION = 1


def summary_document(result: RunResult) -> dict[str, Any]:
    """Head and variants. ``model`` and ``profile`` at the top are the first variant's; each variant repeats its own,
    because a variant may override either."""
    first = next(iter(result.variants.values()))
    return {
        "schema_version": SCHEMA_VERSION,
        "scenario": result.scenario.name,
        "model": _model(first),
        "profile": step_time_entry(first),
        "variants": {
            name: {
                "model": _model(variant),
                "simulated_model": variant.model.entry(),
                "profile": step_time_entry(variant),
                **variant.summary,
            }
            for name, variant in result.variants.items()
        },
    }


def _model(variant: VariantResult) -> str:
    return str(resolved_scenario(variant.scenario)["model"])


def to_json(document: dict[str, Any]) -> str:
    """Strict JSON (no NaN), readable, one final newline."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
