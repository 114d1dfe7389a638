"""The sections of a knee's page: estimates side by side, each curve with its estimates, growth tests, batch knees."""

from __future__ import annotations

from collections.abc import Iterator

from simserve.report.content import Section
from simserve.report.controls import Control, Option, places
from simserve.report.figure import Figure, Table
from simserve.report.knee_data import KneeData
from simserve.report.study_charts import against_load, bars_of_shares
from simserve.report.study_dims import KEYS
from simserve.report.study_measures import FAMILIES, interval_of, interval_text
from simserve.report.study_ranges import SHAPES, Estimate, estimate_chart, marked_range
from simserve.report.words import NOTHING, count, dig, number, share

MAX_PANELS = 12
SATURATION, KNEE = "var(--accent)", "var(--ink)"


def knee_sections(data: KneeData) -> Iterator[Section]:
    """The sections in the order of the questions."""
    yield _estimates(data)
    yield _curves(data)
    yield _tests(data)
    yield _batches(data)


def _estimates(data: KneeData) -> Section:
    estimates = []
    for style in data.styles:
        variant = data.variants[style.name]
        for what, shape in (("knee", SHAPES[1]), ("saturation", SHAPES[0])):
            if dig(variant[what] or {}, "value") is not None:
                estimates.append(Estimate(style.name, variant[what], what, style.color, shape))
    if not estimates:
        return Section("estimates", "Where each variant breaks", "Nothing was found in the range searched.")
    caption = "; ".join(f"{one.row}: {one.what} {interval_text(one.interval, data.load)}" for one in estimates)
    rows = tuple((one.row, one.what, interval_text(one.interval, data.load), _count(one)) for one in estimates)
    table = Table(("variant", "estimate", data.load.label, "runs"), rows)
    figure = Figure(
        "estimates-all", "Knee ◆ and saturation rate ●", f"{caption}.", estimate_chart(data.load, estimates), table,
        wide=True,
    )  # fmt: skip
    return Section("estimates", "Where each variant breaks", _INTRO["estimates"], (figure,))


def _count(estimate: Estimate) -> str:
    return count(dig(estimate.interval, "n"))


def _curves(data: KneeData) -> Section:
    latencies = [measure for measure in data.measures if measure.path.partition(".")[0] in FAMILIES]
    others = [measure for measure in data.measures if measure not in latencies]
    if not data.measures:
        return Section("curves", "Curves", "No point was measured.")
    chosen = [data.measures[0], *(m for m in (*latencies, *others) if m != data.measures[0])]
    options = tuple(Option(measure.label, data.dims[measure.path]) for measure in chosen)
    y = places("y", KEYS)
    figures = []
    for i, style in enumerate(data.styles[:MAX_PANELS]):
        variant = data.variants[style.name]
        spec = against_load(data.load_dim, y, data.styles, i, runs=False)
        saturation, knee = variant["saturation"] or {}, variant["knee"] or {}
        marks = marked_range(data.load_dim, knee, f"knee {number(dig(knee, 'value'))}", KNEE)
        ends = f"saturation {number(dig(saturation, 'value'))}"
        spec["layer"] = [*marked_range(data.load_dim, saturation, ends, SATURATION, 1), *marks, *spec["layer"]]
        spec["height"] = 260
        figures.append(
            Figure(f"curve-{style.key}", style.name, _caption(data, style.name), spec, _numbers(data, style.name))
        )
    notes: tuple[str, ...] = ()
    if len(data.styles) > MAX_PANELS:
        notes = (f"Drawn for the first {MAX_PANELS} of {len(data.styles)} variants; the summary holds all.",)
    controls = (Control("y", "upwards", options),)
    return Section("curves", "Curves", _INTRO["curves"], tuple(figures), None, "", notes, controls=controls)


def _caption(data: KneeData, name: str) -> str:
    variant = data.variants[name]
    grows = [point["load"] for point in variant["curve"] if point["grows"]]
    found = f"its backlog grows from {number(min(grows))}" if grows else "its backlog grows at none of these loads"
    knee = interval_text(variant["knee"], data.load) if variant["knee"] else "not found"
    saturation = interval_text(variant["saturation"], data.load)
    return (
        f"{name} over {data.load.label}: knee {knee}, saturation rate {saturation}; {found}. Bands are 95 % intervals; "
        "the backlog of hollow points grows."
    )


def _numbers(data: KneeData, name: str) -> Table:
    measures = data.measures[:5]
    rows = tuple(
        (
            number(point["load"]),
            *(interval_text(interval_of(point["metrics"], measure.path), measure) for measure in measures),
            _backlog(point["grows"], point["growth_p"])
            + ("" if point["growth_p"] is None else f" (p {_p(point['growth_p'])})"),
        )
        for point in data.variants[name]["curve"]
    )
    return Table((data.load.label, *(measure.label for measure in measures), "backlog"), rows)


def _tests(data: KneeData) -> Section:
    rows = [
        (
            name,
            share(check["at"]),
            number(check["load"]),
            _backlog(check["grows"], check["p_value"]),
            "–" if check["p_value"] is None else _p(check["p_value"]),
        )
        for name, variant in data.variants.items()
        for check in (variant["saturation"] or {}).get("checks") or ()
    ]
    head = ("variant", "of the saturation rate", data.load.label, "backlog", "p")
    return Section("tests", "Growth tests", _INTRO["tests"], table=Table(head, tuple(rows)) if rows else None)


def _backlog(grows: bool, p_value: float | None) -> str:
    """What a growth test said; a line that bounds itself, or too few requests, cannot be tested."""
    if p_value is None:
        return "not tested"
    return "grows" if grows else "does not grow"


def _batches(data: KneeData) -> Section:
    found = {name: variant["batch_knee"] for name, variant in data.variants.items() if variant["batch_knee"]}
    if not found:
        return Section("batch", "Batch knee", "")
    rows = tuple((name, count(dig(knee, "value")), _span(knee), _shares(knee)) for name, knee in found.items())
    table = Table(("variant", "batch knee", "nine in ten draws", "share of the draws"), rows)
    drawn = [
        {"batch": int(batch), "share": float(part), "v": style.key, "variant": style.name}
        for style in data.styles
        for batch, part in ((found.get(style.name) or {}).get("shares") or {}).items()
    ]
    figures: tuple[Figure, ...] = ()
    if len({bar["batch"] for bar in drawn}) > 1:
        caption = "How often each batch size was the knee when the profile's samples were drawn again: " + "; ".join(
            f"{name} {_shares(knee)}" for name, knee in found.items()
        )
        figures = (Figure("batch-shares", "Bootstrap draws", f"{caption}.", bars_of_shares(drawn, data.styles)),)
    return Section("batch", "Batch knee", _INTRO["batch"], figures, table, "variants")


def _span(knee: dict[str, float]) -> str:
    low, high = dig(knee, "low"), dig(knee, "high")
    return NOTHING if low is None or high is None else f"{count(low)} to {count(high)}"


def _shares(knee: dict[str, dict[str, float]]) -> str:
    shares = knee.get("shares") or {}
    ordered = sorted(shares.items(), key=lambda item: int(item[0]))
    return ", ".join(f"{int(batch):,}: {share(part)}" for batch, part in ordered) or "no draws"


def _p(value: float | None) -> str:
    if value is None:
        return NOTHING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


_INTRO = {
    "estimates": "Between the knee and the saturation rate a variant still keeps up, with ever longer waits.",
    "curves": "Latency against load with the knee and the saturation rate; shaded are their 95 % intervals.",
    "tests": "Fresh runs just below and just above the saturation rate: a one-sided test whether more requests arrive "
    "than are answered. Below it should not grow, above it should; the notes say where more requests would show it.",
    "batch": "A property of the step times alone: the largest batch whose incoming doubling still gained at least √2 "
    "in throughput.",
}
