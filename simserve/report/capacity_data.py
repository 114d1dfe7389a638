"""A capacity document as the page reads it: rows with their names and styles, axes of loads and of SLO shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simserve.report.study_measures import Measure, interval_of, measure_of
from simserve.report.study_words import ALL_EQUAL, settings_text, told_load
from simserve.report.style import VariantStyle, variant_styles
from simserve.report.sweep_data import Document
from simserve.report.words import NOTHING, dig

CAPACITY = Measure("capacity", "capacity, requests/s")
COST_OUT = Measure("cost_per_million_output_tokens", "cost per M output tokens")
COST_ALL = Measure("cost_per_million_tokens", "cost per M tokens, prompts included")
SATURATION = "saturation"


@dataclass(frozen=True)
class CapacityRow:
    """A row of the document with the name it goes by on the page."""

    name: str
    style: VariantStyle
    row: Mapping[str, Any]

    def number(self, key: str) -> float | None:
        """The plain number, or the value of the interval, at a key."""
        return dig(interval_of(self.row, key), "value")


@dataclass(frozen=True)
class CapacityData:
    """Read-only views of the document, computed once."""

    document: Document

    @cached_property
    def styles(self) -> list[VariantStyle]:
        """One per variant, in the order of their names' first rows."""
        return variant_styles(dict.fromkeys(row["variant"] for row in self.document["rows"]))

    @cached_property
    def rows(self) -> list[CapacityRow]:
        """In the document's order: cheapest first, or largest capacity first."""
        styles = {style.name: style for style in self.styles}
        return [CapacityRow(row_name(row), styles[row["variant"]], row) for row in self.document["rows"]]

    @property
    def load(self) -> Measure:
        """The axis of the load that was turned up: requests/s, a trace's scale, or clients."""
        return told_load(self.document["load"])

    @property
    def load_is_rate(self) -> bool:
        """Whether the load is the offered rate itself, so that it need not stand beside the capacity."""
        return dig(self.document["load"], "base_rps") == 1.0

    @property
    def slos(self) -> Sequence[Mapping[str, Any]]:
        """What must hold."""
        found: Sequence[Mapping[str, Any]] = self.document["slos"]
        return found

    def has(self, key: str) -> bool:
        """Whether any row has a number there."""
        return any(row.number(key) is not None for row in self.rows)


def row_name(row: Mapping[str, Any]) -> str:
    """``variant, setting 8``."""
    settings = settings_text(row["settings"])
    return str(row["variant"]) if settings == ALL_EQUAL else f"{row['variant']}, {settings}"


def limit_text(row: Mapping[str, Any]) -> str:
    """What stops a row from carrying more, in words."""
    limited = row["limited_by"]
    if limited is None:
        return NOTHING
    if str(limited).startswith("not settled"):
        return str(limited)
    return "growing backlog" if limited == SATURATION else measure_of(str(limited)).label
