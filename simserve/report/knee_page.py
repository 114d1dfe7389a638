"""A search for the knee as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.report.content import Section
from simserve.report.figure import Table
from simserve.report.knee_data import KneeData
from simserve.report.knee_sections import knee_sections
from simserve.report.page import emphasised, render_template, write_html
from simserve.report.study_content import StudyContent, filled_sections, step_time_fact
from simserve.report.study_measures import interval_of, interval_text, measure_of
from simserve.report.study_words import study_badges
from simserve.report.sweep_data import Document, columns
from simserve.report.words import NOTHING, count, dig, joined, number, ratio, times

_SAME = 0.01  # relative difference of rates that a reader would call none
_UNITS = {"×": "times the trace's own rate"}


def write_knee_page(document: Document, manifest: Mapping[str, Any], path: Path) -> None:
    """Write the page of a search for the knee. Raises OutputError when the file cannot be written."""
    write_html(render_knee_page(document, manifest), path)


def render_knee_page(document: Document, manifest: Mapping[str, Any]) -> str:
    """The whole page as text; it depends on the document and its manifest alone."""
    data = KneeData(document)
    content = knee_content(data, manifest)
    return render_template(
        "study.html.j2",
        content.sections,
        {"points": columns(data.rows()), "knees": columns([])},
        content=content,
        kind="simserve knee",
        headline=emphasised(content.headline, [style.name for style in content.styles]),
    )


def knee_content(data: KneeData, manifest: Mapping[str, Any]) -> StudyContent:
    """Everything that the template prints, in its order."""
    document = data.document
    step_times = {name: variant["step_time"] for name, variant in data.variants.items()}
    notes = Section("notes", "Notes", "What the search itself had to say.", notes=tuple(map(str, document["notes"])))
    return StudyContent(
        name=str(document["scenario"]),
        headline=knee_headline(data),
        badges=study_badges(step_times, [(name, point["metrics"]) for name, point in data.points()]),
        facts=[
            step_time_fact(step_times),
            ("load", f"{document['load']['key']}, {data.load.label}"),
            ("latency", measure_of(document["metric"]).label),
        ],
        styles=data.styles,
        summary_intro="The saturation rate is the largest load whose backlog does not grow; the knee is where latency "
        "turns up before it. Brackets hold 95 % intervals.",
        summary=knee_table(data),
        sections=filled_sections([*knee_sections(data), notes]),
        made_with=manifest,
    )


def knee_headline(data: KneeData) -> str:
    """Which variants keep up furthest, and where latency turns up before that."""
    found = {name: dig(variant["saturation"] or {}, "value") for name, variant in data.variants.items()}
    rates = {name: rate for name, rate in found.items() if rate is not None}
    if not rates:
        return "No variant was found to saturate in the range that was searched."
    most = max(rates.values())
    first = [name for name in rates if rates[name] >= most * (1 - _SAME)]
    others = sorted((name for name in rates if name not in first), key=lambda name: -rates[name])
    verb = "keeps" if len(first) == 1 else "keep"
    best = max(first, key=lambda name: rates[name])
    saturation = interval_text(data.variants[best]["saturation"], data.load)
    sentence = f"{joined(first)} {verb} up to {saturation} {_UNITS.get(data.unit, data.unit)}"
    if others:
        sentence += f", {times(ratio(most, rates[others[0]]))} {others[0]}"
    knee = data.variants[best]["knee"] or {}
    if dig(knee, "value") is not None:
        sentence += f"; latency turns up at {interval_text(knee, data.load)}"
    return f"{sentence}."


def knee_table(data: KneeData) -> Table:
    """Per variant: saturation rate, knee, the latency there, batch knee."""
    metric = measure_of(data.document["metric"])
    rows = []
    for name, variant in data.variants.items():
        batch = variant["batch_knee"]
        knee = dig(variant["knee"] or {}, "value")
        low = next(iter(variant["curve"]), None)
        rows.append(
            (
                name,
                interval_text(variant["saturation"], data.load),
                interval_text(variant["knee"], data.load),
                share_of(knee, dig(variant["saturation"] or {}, "value")),
                interval_text(interval_of(low["metrics"], metric.path), metric) if low else NOTHING,
                count(dig(batch, "value")) if batch else NOTHING,
            )
        )
    unit = data.unit
    head = ("variant", f"saturation rate, {unit}", f"knee, {unit}", "knee / saturation")
    return Table((*head, f"{metric.label} at the lowest load", "batch knee"), tuple(rows))


def share_of(value: float | None, whole: float | None) -> str:
    """``0.80``, a dash where either is unknown."""
    return number(ratio(value, whole))
