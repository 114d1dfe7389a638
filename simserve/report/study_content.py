"""What every page of a study says, before any HTML; sweeps, knees and capacity fill it in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from simserve.report.content import Section, flat
from simserve.report.figure import Table
from simserve.report.headline import Badge
from simserve.report.study_words import StepTimes, source_words
from simserve.report.style import VariantStyle


@dataclass(frozen=True)
class PointRow:
    """A point in the list of all points: its number in the document, its cells, and its run."""

    id: int
    title: str
    cells: tuple[str, ...]
    report: str | None
    command: str


@dataclass(frozen=True)
class PointList:
    """Points of one group of settings."""

    title: str
    head: tuple[str, ...]
    rows: tuple[PointRow, ...]


@dataclass(frozen=True)
class StudyContent:
    """The whole page."""

    name: str
    headline: str
    badges: list[Badge]
    facts: list[tuple[str, str]]
    styles: list[VariantStyle]
    summary_intro: str
    summary: Table
    sections: list[Section]
    made_with: Mapping[str, Any]
    points: tuple[PointList, ...] = ()
    points_intro: str = ""

    @property
    def provenance(self) -> list[tuple[str, str]]:
        """The plain values of the manifest, shown at the foot."""
        return [(name, text) for name, text in flat(self.made_with) if "." not in name]

    @property
    def manifest(self) -> list[tuple[str, str]]:
        """The nested values of the manifest, folded."""
        return [(name, text) for name, text in flat(self.made_with) if "." in name]


def step_time_fact(step_times: StepTimes) -> tuple[str, str]:
    """Where step times come from, each source once."""
    return "step times", "; ".join(dict.fromkeys(source_words(source) for source in step_times.values()))


def report_link(report: str | None) -> str | None:
    """The address of a run's report relative to the page; nothing that leaves the page's folder or names a scheme."""
    if not report or report.startswith("/") or ".." in report.split("/") or ":" in report.split("/")[0]:
        return None
    return quote(report)


def filled_sections(sections: Sequence[Section]) -> list[Section]:
    """Those that have something to show."""
    return [section for section in sections if section.figures or section.table or section.notes]
