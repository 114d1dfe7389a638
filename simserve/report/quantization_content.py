"""What rounding does to a model: error and bits by scheme, and with trained weights what its answers are worth then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simserve.report.content import Section
from simserve.report.figure import Figure, Table
from simserve.report.headline import Badge
from simserve.report.quality_content import QualityContent, in_words
from simserve.report.study_dims import Spec
from simserve.report.study_measures import Measure
from simserve.report.study_ranges import Estimate as Dot
from simserve.report.study_ranges import estimate_chart
from simserve.report.words import NBSP, NOTHING, joined, magnitude, plural, share
from simserve.step_time.quality_schema import Estimate, Quality, Quantization, SchemeRow

ERROR = Measure("error", "relative error of a matrix, mean to worst")
PERPLEXITY = Measure("perplexity", "perplexity", "large")
RATIO = Measure("ratio", "perplexity, times full precision's", "large")
AGREEMENT = Measure("agreement", "greedy tokens that stay the same", "portion")
_NEAR = 3.0  # times full precision's perplexity, up to which ratios are drawn from where they begin
_COLORS = {8: "var(--c0)", 4: "var(--c1)"}
WORDS = [
    (
        "bits",
        "of one weight, scales included as they are kept: 4 bits in groups of 128 with a scale in 16 bits are 4.125",
    ),
    ("error", "‖W − Ŵ‖ / ‖W‖ of a projection matrix W and what it is after rounding"),
    ("tensor, row, 128", "who shares a scale: a whole matrix, one of its rows, or a group of 128 weights of a row"),
    ("absmax", "the scale is the largest weight that shares it, over the largest level; levels are evenly spaced"),
    ("NF4", "sixteen levels placed where normal numbers are, a scale per 64 weights (QLoRA, NeurIPS 2023)"),
    ("perplexity", "exp of the mean loss per token of the text: as if so many words were equally likely"),
    (
        "greedy agreement",
        "how often the rounded model chooses the token that the full model chose, given the same before",
    ),
    ("95 %", "by resampling windows or answers, paired with full precision's on the same ones"),
]


def quantization_content(document: Quantization) -> QualityContent:
    """Everything that the template prints, in its order."""
    qualities = document.full_precision is not None
    badges = [] if document.note is None else [Badge("no quality", document.note)]
    facts = [
        ("model", f"{document.name}, {document.weights} weights"),
        ("rounded", f"{document.num_matrices} projection matrices, {document.num_weights:,} weights"),
        ("judged on", _judged_on(document)),
        ("seed", str(document.seed)),
    ]
    made_with = document.model_dump(include={"name", "dtype", "digest", "text", "software"})
    intro = "One line per scheme, in the order asked for; in brackets intervals of 95 %."
    return QualityContent(
        name=document.name,
        headline=_headline(document),
        badges=badges,
        facts=facts,
        summary_intro=f"{intro} ★: perplexity was not shown to differ from full precision's." if qualities else intro,
        summary=_summary(document),
        words=WORDS,
        sections=list(_sections(document)),
        made_with=made_with,
    )


def _headline(document: Quantization) -> str:
    """What four bits cost, and whether eight do."""
    known = [row for row in document.rows if row.quality is not None]
    if document.full_precision is None or not known:
        low, high = (pick(document.rows, key=lambda row: row.mean_error) for pick in (min, max))
        return (
            f"Rounding moves the weights of {document.name} by {share(low.mean_error)} ({low.scheme}) to "
            f"{share(high.mean_error)} ({high.scheme}) on average over its matrices."
        )
    free = [row.scheme for row in known if row.quality is not None and not row.quality.differs]
    best, worst = (pick(known, key=_perplexity) for pick in (min, max))
    kept = f"{joined(free)} {'is' if len(free) == 1 else 'are'} not shown to differ" if free else "every scheme differs"
    return (
        f"Perplexity {magnitude(document.full_precision.perplexity.value)} in full precision; {kept}. "
        f"{best.scheme} comes to {magnitude(_perplexity(best))}, {worst.scheme} to {magnitude(_perplexity(worst))}."
    )


def _perplexity(row: SchemeRow) -> float:
    assert row.quality is not None
    return row.quality.perplexity.value


def _judged_on(document: Quantization) -> str:
    full, text = document.full_precision, document.text
    if full is None or text is None:
        return "nothing: see the note above"
    return f"{plural(full.num_windows, 'window')} of {text.name} and {full.num_tokens:,} greedy tokens"


def _summary(document: Quantization) -> Table:
    qualities = ("perplexity", "times full precision's", "greedy tokens equal") if document.full_precision else ()
    head = ("scheme", "bits", "mean error", "worst error", "in", *qualities)
    rows: list[tuple[str, ...]] = []
    if document.full_precision is not None:
        full = _quality(document.full_precision, is_full=True)
        rows.append(("full precision", document.dtype, NOTHING, NOTHING, NOTHING, *full))
    for row in document.rows:
        cells = tuple(_quality(row.quality)) if row.quality else (NOTHING,) * len(qualities)
        errors = f"{row.mean_error:.4f}", f"{row.worst_error:.4f}"
        where = row.worst_matrix.removeprefix("model.")
        rows.append((row.scheme, f"{row.bits_per_weight:.3f}", *errors, where, *cells))
    return Table(head, tuple(rows))


def _quality(quality: Quality, is_full: bool = False) -> tuple[str, str, str]:
    star = "" if is_full or quality.differs else " ★"
    agrees = f"{quality.num_equal_tokens:,} of {quality.num_tokens:,}"
    return in_words(quality.perplexity, PERPLEXITY), _ratio(quality.perplexity_ratio) + star, agrees


def _ratio(estimate: Estimate) -> str:
    """A ratio that may be a hair above 1 or a million: to four decimals where they say something."""
    if estimate.high >= 10:
        return in_words(estimate, RATIO)
    return f"{estimate.value:.4f} ({estimate.low:.4f}{NBSP}to{NBSP}{estimate.high:.4f})"


def _sections(document: Quantization) -> Iterator[Section]:
    errors = [
        Dot(row.scheme, {"value": row.mean_error, "low": row.mean_error, "high": row.worst_error}, "", _color(row))
        for row in document.rows
    ]
    caption = f"{joined([f'{row.scheme} {row.mean_error:.4f}' for row in document.rows])} on average over the matrices."
    figure = Figure(
        "quantization-error", "How far rounding moves a matrix", caption, estimate_chart(ERROR, errors), wide=True
    )
    yield Section("errors", "Errors", "The dot is the mean over matrices, the bar ends at the worst.", (figure,))
    if document.full_precision is not None:
        yield _answers(document)


def _answers(document: Quantization) -> Section:
    intro = (
        "The same windows and answers for every scheme, so that differences are of the weights alone: an interval that "
        "holds 1 shows nothing, and one answer in sixteen that changes is no effect."
    )
    rows = [(row, row.quality) for row in document.rows if row.quality is not None]
    ratios = [Dot(row.scheme, quality.perplexity_ratio.model_dump(), "", _color(row)) for row, quality in rows]
    agreements = [Dot(row.scheme, quality.agreement.model_dump(), "", _color(row)) for row, quality in rows]
    words = {
        "ratio": "; ".join(f"{row.scheme} {_ratio(quality.perplexity_ratio)}" for row, quality in rows),
        "agreement": "; ".join(f"{row.scheme} {in_words(quality.agreement, AGREEMENT)}" for row, quality in rows),
    }
    charts = {
        "ratio": _near_one(estimate_chart(RATIO, ratios), ratios),
        "agreement": estimate_chart(AGREEMENT, agreements),
    }
    titles = {"ratio": "Perplexity against full precision", "agreement": "Greedy agreement with full precision"}
    figures = [Figure(f"quantization-{key}", titles[key], f"{words[key]}.", charts[key], wide=True) for key in charts]
    return Section("answers", "Answers", intro, tuple(figures))


def _near_one(chart: Spec, dots: Sequence[Dot]) -> Spec:
    """The chart with a rule at 1; ratios that all lie near 1 are drawn as far as they go, without the way from 0."""
    ends = [1.0, *(end for dot in dots for end in (dot.interval["low"], dot.interval["high"]))]
    places = [layer["encoding"]["x"] for layer in chart["layer"] if "scale" in layer["encoding"].get("x", {})]
    if max(ends) < _NEAR:
        pad = 0.05 * (max(ends) - min(ends)) or 0.05
        for place in places:
            place["scale"]["domain"] = [round(min(ends) - pad, 5), round(max(ends) + pad, 5)]
            place["axis"] = {"title": RATIO.label, "tickCount": 6, "grid": True}
    rule = {"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5}
    at_one = {"data": {"values": [{"x": 1.0}]}, "mark": rule, "encoding": {"x": {**places[0], "field": "x"}}}
    return {**chart, "layer": [at_one, *chart["layer"]]}


def _color(row: SchemeRow) -> str:
    """Eight bits and four, apart."""
    return _COLORS[8] if row.bits_per_weight > 6 else _COLORS[4]
