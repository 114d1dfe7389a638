"""A measure as an axis of a chart: field, title, scale, ticks; the same for every chart that shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simserve.report.aggregate import is_skewed, linear_ticks, log_ticks
from simserve.report.study_measures import Measure

Dim = Mapping[str, Any]
Spec = dict[str, Any]
KEYS = ("field", "low", "high", "label", "title", "format", "scale", "domain", "ticks", "interval")


def dim(measure: Measure, column: str, values: Iterable[float], log: bool | None = None) -> dict[str, Any]:
    """An axis that holds ``values``: logarithmic if they span more than a factor of 30 and are durations or large
    numbers, or as asked.

    ``column`` is the field of the value; its bounds stand in the fields with ``l`` and ``h`` behind."""
    found = [value for value in values if value > 0]
    if log is None:
        log = measure.kind in ("duration", "large") and is_skewed(found)
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    if log and found:
        domain = [0.85 * low, 1.18 * high]
        ticks = log_ticks(domain[0], domain[1], 6)
    else:
        domain = [0.0, 1.0 if measure.kind == "portion" and 0.5 < high <= 1 else 1.06 * high]
        ticks = linear_ticks(domain[1], 6)
    form = "compact" if measure.kind in ("whole", "large") else measure.kind  # the page's own formats
    return {
        "field": column,
        "low": f"{column}l",
        "high": f"{column}h",
        "label": measure.label,
        "title": measure.label + (", logarithmic" if log else ""),
        "format": form,
        "scale": "log" if log and found else "linear",
        "domain": [float(f"{edge:.5g}") for edge in domain],
        "ticks": ticks,
        "interval": f"isValid(datum.{column}l) ? {form}(datum.{column}l) + ' to ' + {form}(datum.{column}h) : '–'",
    }


def position(axis: Dim, end: str = "field", grid: bool = False) -> Spec:
    """Where a mark stands on an axis, by the value or by one of its bounds."""
    return {
        "field": axis[end],
        "type": "quantitative",
        "scale": {"type": axis["scale"], "domain": axis["domain"], "nice": False},
        "axis": {
            "title": axis["title"],
            "formatType": axis["format"],
            "format": "",
            "values": axis["ticks"],
            "grid": grid,
        },
    }


def tip(axis: Dim) -> Spec:
    """A line of a tooltip: a measure in its own format."""
    return {
        "field": axis["field"],
        "type": "quantitative",
        "title": axis["label"],
        "formatType": axis["format"],
        "format": "",
    }


def word_tip(field: str, title: str) -> Spec:
    """A line of a tooltip: a text."""
    return {"field": field, "type": "nominal", "title": title}


def valid(field: str) -> Spec:
    """Keeps the rows that have a number there."""
    return {"filter": {"field": field, "valid": True}}
