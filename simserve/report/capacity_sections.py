"""The sections of a capacity page: rows as dots with ranges, each row's SLOs over the load, replicas over a target."""

from __future__ import annotations

import math
from collections.abc import Iterator

from simserve.report.capacity_charts import Slo, gpus_chart, slo_chart, slo_dim
from simserve.report.capacity_data import CAPACITY, COST_ALL, COST_OUT, CapacityData, CapacityRow, limit_text
from simserve.report.content import Section
from simserve.report.figure import Figure, Key, Table
from simserve.report.study_dims import Dim, dim
from simserve.report.study_measures import Measure, dotted, interval_of, interval_text, measure_of
from simserve.report.study_ranges import Estimate, estimate_chart
from simserve.report.style import variant_styles
from simserve.report.words import count, dig, number, times

MAX_LINES = 40
MAX_PANELS = 12
MAX_STEPS = 6  # lines in the chart of replicas
REPLICAS = Measure("replicas", "replicas for the target", "whole")


def capacity_sections(data: CapacityData) -> Iterator[Section]:
    """The sections in the order of the questions."""
    yield _ranking(data)
    yield _slos(data)
    yield _target(data)


def _ranking(data: CapacityData) -> Section:
    figures = []
    for measure in (CAPACITY, COST_OUT, COST_ALL, REPLICAS):
        shown = [row for row in data.rows[:MAX_LINES] if row.number(measure.path) is not None]
        if not shown:
            continue
        estimates = [
            Estimate(row.name, interval_of(row.row, measure.path), measure.label, row.style.color) for row in shown
        ]
        ends = [
            f"{interval_text(interval_of(r.row, measure.path), measure)} with {r.name}" for r in _ends(shown, measure)
        ]
        caption = f"{measure.label}: {' to '.join(dict.fromkeys(ends))}."
        rows = tuple((row.name, interval_text(interval_of(row.row, measure.path), measure)) for row in shown)
        table = Table(("variant and settings", measure.label), rows)
        spec = estimate_chart(measure, estimates)
        figures.append(Figure(f"rank-{measure.path}", measure.label, caption, spec, table))
    notes: tuple[str, ...] = ()
    if len(data.rows) > MAX_LINES:
        notes = (f"Drawn for the first {MAX_LINES} of {len(data.rows)} rows; the summary holds all.",)
    return Section("ranking", "Side by side", _INTRO["ranking"], tuple(figures), None, "variants", notes)


def _ends(rows: list[CapacityRow], measure: Measure) -> tuple[CapacityRow, CapacityRow]:
    """The rows with the smallest and the largest value."""

    def value(row: CapacityRow) -> float:
        return row.number(measure.path) or 0.0

    return min(rows, key=value), max(rows, key=value)


def _slos(data: CapacityData) -> Section:
    if not data.slos:
        return Section("slos", "SLOs", "")
    styles = variant_styles(f"{i}" for i in range(len(data.slos)))
    slos = [
        Slo(f"s{i}", dotted(str(slo["metric"])), float(slo["limit"]), str(slo["text"]), style)
        for i, (slo, style) in enumerate(zip(data.slos, styles, strict=True))
    ]
    shown = data.rows[:MAX_PANELS]
    y = slo_dim(slos, [row.row for row in shown])
    keys = (*(Key(slo.text, slo.style.color, slo.style.dash_array) for slo in slos), Key("the limit", "var(--ink)", ""))
    figures = []
    for i, row in enumerate(shown):
        load = _load_dim(data.load, row)
        spec = slo_chart(load, y, slos, row.row)
        figures.append(
            Figure(f"slo-{i}", row.name, _slo_caption(row), spec, _slo_table(data.load, row, slos), "", keys)
        )
    notes: tuple[str, ...] = ()
    if len(data.rows) > len(shown):
        notes = (f"Drawn for the first {len(shown)} of {len(data.rows)} rows of the summary.",)
    return Section("slos", "SLOs over the load", _INTRO["slos"], tuple(figures), notes=notes)


def _load_dim(load: Measure, row: CapacityRow) -> Dim:
    values = [float(point["load"]) for point in row.row["curve"]]
    values += [v for key in ("value", "high") if (v := dig(row.row["load"] or {}, key)) is not None]
    return dim(load, "load", values, log=False)


def _slo_caption(row: CapacityRow) -> str:
    capacity = interval_text(row.row["capacity"], CAPACITY)
    return (
        f"Capacity {capacity} requests/s, limited by: {limit_text(row.row)}. Each line is a statistic over "
        "its limit; above 1 the SLO is broken. Shaded is the capacity's interval; the backlog of hollow points grows."
    )


def _slo_table(load: Measure, row: CapacityRow, slos: list[Slo]) -> Table:
    lines = []
    for point in row.row["curve"]:
        cells = []
        for slo in slos:
            interval, measure = interval_of(point["metrics"], slo.metric), measure_of(slo.metric)
            used = slo.used(dig(interval, "value"))
            over = f", {times(used)} the limit" if used is not None else ""
            cells.append(interval_text(interval, measure) + over)
        lines.append((number(point["load"]), *cells, "grows" if point["grows"] else "does not grow"))
    head = (load.label, *(measure_of(slo.metric).label for slo in slos), "backlog")
    return Table(head, tuple(lines))


def _target(data: CapacityData) -> Section:
    """GPUs (or cost per hour) over the target rate, a staircase per variant's best row."""
    best: dict[str, CapacityRow] = {}
    for row in data.rows:
        if (row.number("capacity") or 0.0) > 0 and row.style.key not in best:
            best[row.style.key] = row
    shown = list(best.values())[:MAX_STEPS]
    if not shown:
        return Section("target", "Replicas", "")
    price = dig(data.document, "price_per_gpu_hour")
    target = dig(data.document, "target_rps")
    measure = Measure("y", "GPUs needed" if price is None else "cost per hour")
    spec = gpus_chart(shown, measure, price or 1.0, target)
    words = [f"{row.name} {_need(row, target)}" for row in shown]
    goal = f"For {number(target)} requests/s: {'; '.join(words)}. " if target is not None else ""
    caption = (
        f"{goal}Replicas are the target over the capacity, rounded up; bands follow the interval of the capacity. One "
        "line per variant: its first row in the summary."
    )
    head = (
        "variant and settings",
        "capacity, requests/s",
        "GPUs a replica",
        "replicas for the target",
        "cost per hour",
    )
    rows = tuple(
        (
            row.name,
            interval_text(row.row["capacity"], CAPACITY),
            count(row.number("gpus_per_replica")),
            replicas_text(row),
            number(row.number("cost_per_hour")),
        )
        for row in shown
    )
    title = "GPUs over the target rate" if price is None else "Cost per hour over the target rate"
    figure = Figure("target-gpus", title, caption, spec, Table(head, rows), wide=True)
    return Section("target", "Replicas and cost", _INTRO["target"], (figure,), legend="variants")


def replicas_text(row: CapacityRow) -> str:
    """``3 (3 to 4)``, whole numbers."""
    return interval_text(row.row["replicas"], REPLICAS)


def _need(row: CapacityRow, target: float | None) -> str:
    if dig(row.row["replicas"] or {}, "value") is not None:
        return f"{replicas_text(row)} replicas"
    return f"{math.ceil((target or 0.0) / (row.number('capacity') or 1.0)):,} replicas"


_INTRO = {
    "ranking": "In the order of the summary: the dot is the estimate, the bar its 95 % interval.",
    "slos": "How near each row comes to its limits as the load rises: the capacity is the largest load at which every "
    "line stays below 1 and the backlog does not grow. Lines are of answered requests; those never answered count "
    "against a percentile too.",
    "target": "What a target rate needs when requests are spread evenly over replicas.",
}
