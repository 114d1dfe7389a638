"""What a page about weights or drafts says, before any HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simserve.report.content import Section, flat
from simserve.report.figure import Table
from simserve.report.headline import Badge
from simserve.report.study_measures import Measure, interval_text
from simserve.step_time.quality_schema import Estimate


@dataclass(frozen=True)
class QualityContent:
    """The whole page. ``words`` are terms and what they mean, ``made_with`` what the foot shows."""

    name: str
    headline: str
    badges: list[Badge]
    facts: list[tuple[str, str]]
    summary_intro: str
    summary: Table
    words: list[tuple[str, str]]
    sections: list[Section]
    made_with: Mapping[str, Any]
    styles: tuple[()] = ()  # there are no variants

    @property
    def provenance(self) -> list[tuple[str, str]]:
        """The plain values, shown at the foot."""
        return [(name, text) for name, text in flat(self.made_with) if "." not in name]

    @property
    def manifest(self) -> list[tuple[str, str]]:
        """The nested values, folded."""
        return [(name, text) for name, text in flat(self.made_with) if "." in name]


def in_words(estimate: Estimate, measure: Measure) -> str:
    """``24.6 (24.1 to 25.0)``."""
    return interval_text(estimate.model_dump(), measure)
