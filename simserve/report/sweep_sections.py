"""The sections of a sweep's page: curves, everything against the load, settings side by side, the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simserve.report.content import Section
from simserve.report.controls import Control, Option, places
from simserve.report.figure import Figure, Table
from simserve.report.study_charts import against_load, dots_and_ranges, front, trade_off
from simserve.report.study_dims import KEYS, Dim
from simserve.report.study_measures import FAMILIES, STATISTICS, Measure, interval_of, interval_text, measure_of
from simserve.report.sweep_data import Point, SweepData
from simserve.report.sweep_speedup import speedup_section
from simserve.report.sweep_words import knee_text
from simserve.report.words import joined, number, plural

MAX_PANELS = 12
MAX_LINES = 40  # of settings in one chart of dots
MAX_NUMBERS = 60  # rows of a folded table
CROWDED = 40  # points of a curve from which they are drawn small
TRADED = ("e2e_s.mean", "ttft_s.p99", "tpot_s.p99", "ttft_s.mean", "tpot_s.mean", "itl_s.p99", "e2e_s.p99", "e2e_s.p50")
ALWAYS = ("output_tokens_per_s", "goodput_rps", "mean_batch_size", "mean_waiting", "kv_used")
OFTEN = (
    "slo_attainment",
    "lowest_slo_attainment",
    "fairness.speed",
    "fairness.slo_attainment",
    "prefix_hit_rate",
    "num_preemptions",
    "num_turned_away",
    "unanswered_share",
    "tokens_per_pass",
    "acceptance_rate",
)
WORK = ("computed_tokens", "model_macs")  # where variants differ in it


def sweep_sections(data: SweepData) -> Iterator[Section]:
    """The sections in the order of the questions: does speculation pay, the curves, what happens along them, the
    choice."""
    speedup = speedup_section(data)
    if speedup is not None:
        yield speedup
    if data.load is not None:
        yield _trade_offs(data)
        yield _along(data)
    else:
        yield _settings(data)
    yield _pareto(data)


def _trade_offs(data: SweepData) -> Section:
    x_paths = [p for p in ("output_tokens_per_s", "load", "requests_per_s") if p in data.dims]
    y_paths = [path for path in dict.fromkeys((data.metric, *TRADED)) if path in data.dims]
    if not y_paths:
        return Section("curves", "Throughput and latency", "No latency was measured.")
    controls = (_choice("y", "upwards", y_paths, data), _choice("x", "to the right", x_paths, data))
    x, y = places("x", KEYS), places("y", KEYS)
    panels = data.groups[:MAX_PANELS]
    figures = []
    for i, group in enumerate(panels):
        points = _points(data, group)
        spec = trade_off(x, y, data.dims["load"], data.styles, i, len(points) > CROWDED * len(data.styles))
        table = _numbers(data, points, [measure_of(path) for path in ("output_tokens_per_s", *y_paths[:2])])
        title = group if len(data.groups) > 1 else "Latency against throughput"
        figures.append(Figure(f"curve-{i}", title, _caption(data, group), spec, table, wide=len(panels) == 1))
    notes = []
    if len(data.groups) > MAX_PANELS:
        rest = len(data.groups) - MAX_PANELS
        notes.append(f"Drawn for the first {MAX_PANELS} of {len(data.groups)} settings; {rest} more are chosen below.")
    return Section(
        "curves", "Throughput and latency", _INTRO["curves"], tuple(figures), None, "variants", tuple(notes),
        controls=controls,
    )  # fmt: skip


def _along(data: SweepData) -> Section:
    """Every measure over the load."""
    controls = [_statistics(data)]
    group: int | str = 0
    if len(data.groups) > 1:
        options = tuple(Option(text, {"group": i}) for i, text in enumerate(data.groups))
        controls.append(Control("settings", "settings", options))
        group = "$settings.group"
    load = data.dims["load"]
    crowded = len(data.drawn) > CROWDED * len(data.styles) * len(data.groups)
    figures = []
    points = [point for _, point in data.drawn]
    for family, measures in _families(data).items():
        spec = against_load(load, _axis(data, family), data.styles, group, crowded)
        table = _numbers(data, points, measures)
        figures.append(Figure(f"load-{family}", _title(family), _spread(data, measures), spec, table))
    return Section(
        "load", "Against the load", _INTRO["load"], tuple(figures), None, "variants", controls=tuple(controls)
    )


def _settings(data: SweepData) -> Section:
    """Lines along the only axis where it has numbers enough, else dots with their intervals, a line per setting."""
    shown = data.groups[:MAX_LINES]
    figures = []
    points = [point for _, point in data.drawn]
    for family, measures in _families(data).items():
        axis = _axis(data, family)
        if data.line:
            spec = against_load(data.dims["load"], axis, data.styles, None, len(points) > CROWDED * len(data.styles))
        else:
            spec = dots_and_ranges(axis, shown, data.styles, len(data.styles))
        table = _numbers(data, points, measures)
        figures.append(Figure(f"setting-{family}", _title(family), _spread(data, measures), spec, table))
    left = 0 if data.line else len(data.groups) - len(shown)
    notes = (f"Charts show the first {MAX_LINES} settings; {left} more stand in the table.",) if left > 0 else ()
    controls, intro = (_statistics(data),), _INTRO["line" if data.line else "settings"]
    return Section("settings", "Settings", intro, tuple(figures), None, "variants", notes, controls=controls)


def _pareto(data: SweepData) -> Section:
    x_path, y_path = "output_tokens_per_s", data.metric
    if x_path not in data.dims or y_path not in data.dims:
        return Section("pareto", "Best trade-offs", "")
    best = [point for _, point in data.drawn if point["pareto"]]
    spec = front(data.dims[x_path], data.dims[y_path], data.styles)
    who = joined(list(dict.fromkeys(point["variant"] for point in best))) or "none"
    caption = (
        f"{plural(len(best), 'point')} of {len(data.drawn):,} {'is' if len(best) == 1 else 'are'} beaten by no other "
        f"in both output tokens/s and latency; they belong to {who}. The others are drawn faint, and hollow where "
        "the backlog grows or more than 1 % of the requests are unanswered."
    )
    table = _numbers(data, best, [measure_of(path) for path in dict.fromkeys((x_path, y_path, "ttft_s.p99"))])
    figure = Figure("pareto-front", "Throughput against latency", caption, spec, table, wide=True)
    return Section("pareto", "Best trade-offs", _INTRO["pareto"], (figure,), legend="variants")


def _axis(data: SweepData, family: str) -> Dim:
    """The axis of a measure; that of a latency follows the control of the statistic."""
    if family not in FAMILIES:
        return data.dims[family]
    spots = places("stat", [f"{family}.{key}" for key in KEYS])
    return {key: spots[f"{family}.{key}"] for key in KEYS}


def _title(family: str) -> str:
    return FAMILIES.get(family) or measure_of(family).label


def _families(data: SweepData) -> dict[str, list[Measure]]:
    """What is drawn over the load: each latency with its statistics, then the other measures that say something."""
    latencies = {
        family: [measure_of(f"{family}.{s}") for s in STATISTICS if f"{family}.{s}" in data.dims] for family in FAMILIES
    }
    plain = {path: [measure_of(path)] for path in ALWAYS if path in data.dims}
    for path in OFTEN:  # only where they are not nothing throughout
        if path in data.dims and any(_nonzero(point, path) for _, point in data.drawn):
            plain[path] = [measure_of(path)]
    plain |= {path: [measure_of(path)] for path in WORK if path in data.dims and _differs(data, path)}
    return {family: measures for family, measures in latencies.items() if measures} | plain


def _statistics(data: SweepData) -> Control:
    """One choice of the statistic for all latencies at once; a latency without it keeps one that it has."""
    options = []
    for statistic in STATISTICS:
        values: dict[str, object] = {}
        for family, measures in _families(data).items():
            if family in FAMILIES:
                path = f"{family}.{statistic}" if f"{family}.{statistic}" in data.dims else measures[0].path
                values |= {f"{family}.{key}": data.dims[path][key] for key in KEYS}
        options.append(Option(statistic, values))
    return Control("stat", "latencies", tuple(options))


def _choice(name: str, label: str, paths: Sequence[str], data: SweepData) -> Control:
    return Control(name, label, tuple(Option(data.dims[path]["label"], data.dims[path]) for path in paths))


def _points(data: SweepData, group: str) -> list[Point]:
    return [point for _, point in data.drawn if data.group_of(point) == group]


def _caption(data: SweepData, group: str) -> str:
    """The knees and ends of one panel's curves in words."""
    parts = []
    for curve in data.document["curves"]:
        if data.curve_group(curve) == group and data.load is not None:
            parts.append(f"{curve['variant']}: knee {'at ' if curve['knee'] else ''}{knee_text(curve, data.load)}")
    label = data.load.label if data.load else ""
    found = f"Over {label}, {'; '.join(parts)}. " if parts else ""
    return (
        f"{found}Points follow the load; bars are 95 % intervals, ◇ marks a knee, hollow points have a growing backlog "
        "or leave more than 1 % of the requests unanswered."
    )


def _spread(data: SweepData, measures: Sequence[Measure]) -> str:
    """Between what and what a measure lies, per variant."""
    measure = measures[0]
    texts = []
    for style in data.styles:
        intervals = [interval_of(p["metrics"], measure.path) for _, p in data.drawn if p["variant"] == style.name]
        found = [value for interval in intervals if (value := interval.get("value")) is not None]
        if found:
            low, high = measure.text(min(found)), measure.text(max(found))
            texts.append(f"{style.name} {low}" if low == high else f"{style.name} {low} to {high}")
    return f"{measure.label} over all points: {'; '.join(texts) or 'not measured'}."


def _numbers(data: SweepData, points: Sequence[Point], measures: Sequence[Measure]) -> Table:
    """The numbers behind a chart, at most ``MAX_NUMBERS`` of its points evenly through their order."""
    step = -(-len(points) // MAX_NUMBERS) or 1
    kept = points[::step]
    many = len(data.groups) > 1
    rows = [
        (
            *((number(data.load_of(point)),) if data.load else ()),
            *((data.group_of(point),) if many else ()),
            point["variant"],
            *(interval_text(interval_of(point["metrics"], m.path), m) for m in measures),
        )
        for point in kept
    ]
    first = (data.load.label,) if data.load else ()
    head = (*first, *(("settings",) if many else ()), "variant", *(m.label for m in measures))
    if step > 1:
        rows.append((f"every {step}th point; all stand under Every point", *("",) * (len(head) - 1)))
    return Table(head, tuple(rows))


def _differs(data: SweepData, path: str) -> bool:
    """Whether variants have it in different amounts, to a percent, at some setting."""
    found: dict[str, list[float]] = {}
    for _, point in data.drawn:
        value = interval_of(point["metrics"], path).get("value")
        if value is not None:
            found.setdefault(str(point["settings"]), []).append(value)
    return any(max(values) > 1.01 * min(values) for values in found.values())


def _nonzero(point: Point, path: str) -> bool:
    return bool(interval_of(point["metrics"], path).get("value"))


_INTRO = {
    "curves": "Each curve is one variant under rising load: it goes right while throughput grows, and up where latency "
    "pays for it. Point at a mark for its numbers; click on it for its run.",
    "load": "The same points over the load, with 95 % bands; upright rules mark the knees. Click on a point for its "
    "run.",
    "settings": "One line per setting: the dot is the mean over replications, the bar its 95 % interval. Click on a "
    "dot for its run.",
    "line": "The points over what was varied, with 95 % bands over replications. Click on a point for its run.",
    "pareto": "What to choose from: more throughput to the right, shorter answers below.",
}
