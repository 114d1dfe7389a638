"""A search for capacity as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simserve.report.capacity_data import (
    CAPACITY,
    COST_ALL,
    COST_OUT,
    SATURATION,
    CapacityData,
    CapacityRow,
    limit_text,
)
from simserve.report.capacity_sections import capacity_sections, replicas_text
from simserve.report.content import Section
from simserve.report.figure import Table
from simserve.report.page import emphasised, render_template, write_html
from simserve.report.study_content import StudyContent, filled_sections, step_time_fact
from simserve.report.study_measures import interval_of, interval_text
from simserve.report.study_words import settings_text, study_badges
from simserve.report.sweep_data import Document
from simserve.report.words import NOTHING, count, number


def write_capacity_page(document: Document, manifest: Mapping[str, Any], path: Path) -> None:
    """Write the page of a search for capacity. Raises OutputError when the file cannot be written."""
    write_html(render_capacity_page(document, manifest), path)


def render_capacity_page(document: Document, manifest: Mapping[str, Any]) -> str:
    """The whole page as text; it depends on the document and its manifest alone."""
    content = capacity_content(CapacityData(document), manifest)
    return render_template(
        "study.html.j2",
        content.sections,
        content=content,
        kind="simserve capacity",
        headline=emphasised(content.headline, [style.name for style in content.styles]),
    )


def capacity_content(data: CapacityData, manifest: Mapping[str, Any]) -> StudyContent:
    """Everything that the template prints, in its order."""
    document = data.document
    step_times = {row.name: row.row["step_time"] for row in data.rows}
    points = [(row.name, point["metrics"]) for row in data.rows for point in row.row["curve"]]
    said = (
        *map(str, document["notes"]),
        *(f"{row.name}: {row.row['reason']}" for row in data.rows if row.row["reason"]),
    )
    notes = Section("notes", "Notes", "What the search itself had to say.", notes=said)
    return StudyContent(
        name=str(document["scenario"]),
        headline=capacity_headline(data),
        badges=study_badges(step_times, points),
        facts=_facts(data),
        styles=data.styles,
        summary_intro=f"Sorted by {'cost' if data.has(COST_OUT.path) else 'capacity'}. Capacity is the largest load "
        "that holds every SLO with a backlog that does not grow; brackets hold 95 % intervals.",
        summary=capacity_table(data),
        sections=filled_sections([*capacity_sections(data), notes]),
        made_with=manifest,
    )


def capacity_headline(data: CapacityData) -> str:
    """The first row: what it carries, what limits it, what it costs."""
    able = [row for row in data.rows if (row.number("capacity") or 0.0) > 0]
    if not able:
        return "No variant holds every SLO at any load that was tried."
    best = able[0]
    sentence = (
        f"{best.name} {'costs the least' if best.number(COST_OUT.path) is not None else 'carries the most'}: "
        f"{interval_text(best.row['capacity'], CAPACITY)} requests/s within every SLO, limited by "
        f"{'a' if best.row['limited_by'] == SATURATION else 'its'} {limit_text(best.row)}"
    )
    if best.number(COST_OUT.path) is not None:
        cost = interval_text(interval_of(best.row, COST_OUT.path), COST_OUT)
        sentence += f", at {cost} per million output tokens"
    if best.row["replicas"] is not None and data.document["target_rps"] is not None:
        need = replicas_text(best)
        sentence += f"; {number(data.document['target_rps'])} requests/s need {need} replicas"
    return f"{sentence}."


def capacity_table(data: CapacityData) -> Table:
    """All rows in the document's order; columns that no row fills are left out."""
    columns: list[tuple[str, Callable[[CapacityRow], str]]] = [
        ("variant", lambda row: str(row.row["variant"])),
        ("settings", lambda row: settings_text(row.row["settings"])),
        (CAPACITY.label, lambda row: interval_text(row.row["capacity"], CAPACITY)),
        *_load_column(data),
        ("limited by", lambda row: limit_text(row.row)),
        ("output tokens/s", lambda row: number(row.number("output_tokens_per_s"))),
        ("GPUs a replica", lambda row: count(row.number("gpus_per_replica"))),
        ("replicas for the target", replicas_text),
        ("cost per hour", lambda row: number(row.number("cost_per_hour"))),
        (COST_OUT.label, lambda row: interval_text(interval_of(row.row, COST_OUT.path), COST_OUT)),
        (COST_ALL.label, lambda row: interval_text(interval_of(row.row, COST_ALL.path), COST_ALL)),
        ("runs", lambda row: count(row.number("num_simulations"))),
    ]
    cells = {head: [text(row) for row in data.rows] for head, text in columns}
    many = any(row.row["settings"] for row in data.rows)
    kept = {
        head: texts
        for head, texts in cells.items()
        if any(text != NOTHING for text in texts) and (head != "settings" or many)
    }
    return Table(tuple(kept), tuple(zip(*kept.values(), strict=True)))


def _load_column(data: CapacityData) -> list[tuple[str, Callable[[CapacityRow], str]]]:
    """The load that was turned up, where it is not the rate itself."""
    if data.load_is_rate:
        return []
    return [(data.load.label, lambda row: interval_text(row.row["load"], data.load))]


def _facts(data: CapacityData) -> list[tuple[str, str]]:
    document = data.document
    price, target = document["price_per_gpu_hour"], document["target_rps"]
    return [
        ("SLOs", "; ".join(str(slo["text"]) for slo in data.slos) or "none: the saturation rate alone"),
        step_time_fact({row.name: row.row["step_time"] for row in data.rows}),
        ("target", f"{number(target)} requests/s" if target is not None else NOTHING),
        ("price", f"{number(price)} per GPU-hour" if price is not None else NOTHING),
        ("runs simulated", count(sum(row.number("num_simulations") or 0 for row in data.rows))),
    ]
