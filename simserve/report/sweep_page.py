"""A sweep as one self-contained HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simserve.report.content import Section
from simserve.report.headline import Badge
from simserve.report.page import emphasised, render_template, write_html
from simserve.report.study_content import (
    PointList,
    PointRow,
    StudyContent,
    filled_sections,
    report_link,
    step_time_fact,
)
from simserve.report.study_measures import Measure, interval_of, interval_text, measure_of
from simserve.report.study_words import study_badges
from simserve.report.sweep_data import Document, Point, SweepData, backlog_words, columns
from simserve.report.sweep_sections import sweep_sections
from simserve.report.sweep_words import MAX_ROWS, best_table, curve_table, sweep_headline
from simserve.report.words import dig, joined, number, plural

_LISTED = (
    *("output_tokens_per_s", "requests_per_s", "goodput_rps", "ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "tpot_s.p99"),
    *("itl_s.p99", "e2e_s.mean", "e2e_s.p99", "mean_batch_size", "mean_waiting", "kv_used", "tokens_per_pass"),
    "unanswered_share",
)


def write_sweep_page(document: Document, manifest: Mapping[str, Any], path: Path) -> None:
    """Write the page of a sweep. Raises OutputError when the file cannot be written."""
    write_html(render_sweep_page(document, manifest), path)


def render_sweep_page(document: Document, manifest: Mapping[str, Any]) -> str:
    """The whole page as text; it depends on the document and its manifest alone."""
    data = SweepData(document)
    content = sweep_content(data, manifest)
    return render_template(
        "study.html.j2",
        content.sections,
        {"points": columns(data.rows()), "knees": columns(data.knees())},
        content=content,
        kind="simserve sweep",
        headline=emphasised(content.headline, [style.name for style in content.styles]),
    )


def sweep_content(data: SweepData, manifest: Mapping[str, Any]) -> StudyContent:
    """Everything that the template prints, in its order."""
    document = data.document
    metrics = [(point["variant"], point["metrics"]) for point in document["points"]]
    notes = Section("notes", "Notes", "What the sweep itself had to say.", notes=tuple(_notes(data)))
    return StudyContent(
        name=str(document["scenario"]),
        headline=sweep_headline(data),
        badges=[*study_badges(document["step_times"], metrics), *_unanswered(document)],
        facts=_facts(document),
        styles=data.styles,
        summary_intro=f"Per curve: the knee of {measure_of(data.metric).label} and the loads it was looked for in, "
        "from where the backlog grows, and the most that is carried before (95 % intervals)."
        if data.load
        else "The settings with the most output tokens/s, of those that keep up and answer (95 % intervals).",
        summary=curve_table(data) if data.load else best_table(data),
        sections=filled_sections([*sweep_sections(data), notes]),
        points=tuple(_lists(data)),
        points_intro="The numbers of every point, with 95 % intervals where replications gave one; the last column "
        "opens its run's report or shows the command that makes one.",
        made_with=manifest,
    )


def _unanswered(document: Document) -> list[Badge]:
    """Points that look well because they speak of the requests that were answered only."""
    total = Counter(point["variant"] for point in document["points"])
    found = Counter(point["variant"] for point in document["points"] if point["leaves_unanswered"])
    if not found:
        return []
    who = joined([f"{num} of {plural(total[name], 'point')} of {name}" for name, num in found.items()])
    return [
        Badge(
            "unanswered",
            f"More than 1 % of the requests got no answer at {who}: latencies there are of the others, "
            "and no such point is a best trade-off or lies before a knee.",
        )
    ]


def _facts(document: Document) -> list[tuple[str, str]]:
    axes = [f"{axis['key']}: {_range(axis['values'])}" for axis in document["axes"]]
    seeds = document["seeds"]
    return [
        ("model", str(document["model"])),
        step_time_fact(document["step_times"]),
        ("swept over", "; ".join(axes) or "nothing"),
        ("points", f"{len(document['points']):,}, {plural(int(document['replications']), 'replication')} each"),
        ("seeds", f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 2 else ", ".join(map(str, seeds))),
        ("warm-up", str(document["warmup"])),
    ]


def _range(values: Sequence[object]) -> str:
    if len(values) <= 6:
        return ", ".join(map(_plain, values))
    return f"{_plain(values[0])} to {_plain(values[-1])} in {len(values)} values"


def _plain(value: object) -> str:
    return number(float(value)) if isinstance(value, float) else str(value)


def _notes(data: SweepData) -> Iterator[str]:
    yield from map(str, data.document["notes"])
    total = len(data.document["points"])
    if total > len(data.drawn):
        yield (
            f"This page draws and lists {len(data.drawn):,} of {total:,} points, those of the first "
            f"{plural(len(data.groups), 'setting')} of {len(data.all_groups):,}; all stand in points.parquet beside it."
        )
    if data.load and len(data.document["curves"]) > MAX_ROWS:
        yield f"The summary holds the first {MAX_ROWS} of {len(data.document['curves']):,} curves."


def _lists(data: SweepData) -> Iterator[PointList]:
    measures = [measure for measure in map(measure_of, _LISTED) if measure.path in data.dims]
    head = (*((data.load.label,) if data.load else ()), "variant", *(m.label for m in measures), "backlog", "run")
    for group in data.groups:
        rows = tuple(_row(data, i, p, measures) for i, p in data.drawn if data.group_of(p) == group)
        if rows:
            yield PointList(group, head, rows)


def _row(data: SweepData, index: int, point: Point, measures: Sequence[Measure]) -> PointRow:
    load = number(data.load_of(point)) if data.load else ""
    grows = dig(point, "growth_p")
    state = backlog_words(point) + (f" (p {_chance(grows)})" if grows is not None else "")
    stopped = int(point["stopped_early"] or 0)
    if stopped:
        state += f", {plural(stopped, 'run')} stopped early"
    cells = (
        *((load,) if data.load else ()),
        point["variant"] + (" ★" if point["pareto"] else ""),
        *(interval_text(interval_of(point["metrics"], measure.path), measure) for measure in measures),
        state,
    )
    where = f"{load} {data.load.label}" if data.load else data.group_of(point)
    return PointRow(index, f"{point['variant']} at {where}", cells, report_link(point["report"]), str(point["command"]))


def _chance(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
