"""What the page of a comparison says, before any HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simserve.report.compare_charts import distribution_figures, ratio_figure, scatter_figures
from simserve.report.compare_words import (
    difference_rows,
    interval_text,
    method_text,
    pair_name,
    ratio_rows,
    ratio_text,
    unanswered_text,
)
from simserve.report.content import Section
from simserve.report.figure import Figure, Table
from simserve.report.headline import Badge
from simserve.report.style import VariantStyle, variant_styles
from simserve.report.words import joined

Document = Mapping[str, Any]
MAX_DRAWN = 8  # pairs with charts; the others have their tables
SIDES = ("a", "b")
_HEADLINE = (
    ("output_tokens_per_s", "the output tokens/s"),
    ("ttft_s.mean", "the mean TTFT"),
    ("e2e_s.mean", "the mean E2E"),
)


@dataclass(frozen=True)
class ComparisonContent:
    """The whole page."""

    name: str
    headline: str
    badges: list[Badge]
    facts: list[tuple[str, str]]
    styles: list[VariantStyle]
    differences: Table
    sections: list[Section]
    provenance: list[tuple[str, str]]
    manifest: list[tuple[str, str]]


def comparison_content(document: Document, manifest: Mapping[str, Any]) -> ComparisonContent:
    """Everything that the template prints, in its order."""
    names = [_name(document, side) for side in SIDES]
    return ComparisonContent(
        name=" against ".join(names),
        headline=headline(document),
        badges=list(_badges(document)),
        facts=[fact for side in SIDES for fact in _facts(document, side)],
        styles=variant_styles(f"{side.upper()}: {name}" for side, name in zip(SIDES, names, strict=True)),
        differences=Table(("key", "A", "B"), tuple(difference_rows(document))),
        sections=list(_sections(document)),
        provenance=list(_provenance(manifest)),
        manifest=[],
    )


def headline(document: Document) -> str:
    """What B is against A, for the first pair in which anything clearly changed."""
    pairs = document["pairs"]
    changed = [pair for pair in pairs if {"better", "worse"} & {m["verdict"] for m in pair["metrics"].values()}]
    if not changed:
        return "No measure clearly differs between A and B."
    pair = changed[0]
    parts = []
    for name, words in _HEADLINE:
        metric = pair["metrics"][name]
        if metric["ratio"] is not None:
            unclear = ", no clear difference" if metric["verdict"] == "unclear" else ""
            span = interval_text(metric).replace("×", "")
            bounds = f" ({span}{unclear})" if metric["verdict"] not in {None, "same"} else ""
            parts.append(f"{ratio_text(metric)} {words}{bounds}")
    if not parts:
        return "No measure clearly differs between A and B."
    where = f"With {pair_name(pair)}, " if len(pairs) > 1 else ""
    return f"{where}B has {joined(parts)} of A."


def _name(document: Document, side: str) -> str:
    """The run's name, with the variant where the only pair is of two different ones."""
    pairs, name = document["pairs"], str(document[side]["name"])
    if len(pairs) == 1 and pairs[0]["variant_a"] != pairs[0]["variant_b"]:
        return f"{pairs[0][f'variant_{side}']} of {name}"
    return name


def _badges(document: Document) -> Iterator[Badge]:
    pairs = document["pairs"]
    sources = {
        f"{side.upper()}: {source['name']}"
        for pair in pairs
        for side in SIDES
        if (source := pair["step_time"][side]) and not source.get("calibrated", True)
    }
    if sources:
        yield Badge("uncalibrated", f"Step times were not measured but estimated ({joined(sorted(sources))}).")
    versions = [document[side]["simserve_version"] for side in SIDES]
    if versions[0] != versions[1]:
        yield Badge("different versions", f"A was made by simserve {versions[0]}, B by {versions[1]}.")
    others = [pair_name(pair) for pair in pairs if not pair["same_requests"]]
    if others:
        yield Badge(
            "different requests",
            f"{joined(others)}: the two runs did not meet the same requests at the same times, so part of what changed "
            "may be the traffic.",
        )
    for pair in pairs:
        if unanswered_text(pair):
            yield Badge("unanswered requests", unanswered_text(pair))


def _facts(document: Document, side: str) -> Iterator[tuple[str, str]]:
    head = document[side]
    yield side.upper(), f"{head['folder']} ({head['scenario']}, seed {head['seed']})"
    sources = [pair["step_time"][side] or {} for pair in document["pairs"]]
    texts = dict.fromkeys(_source(source) for source in sources)
    yield f"step times of {side.upper()}", "; ".join(texts)


def _source(source: Mapping[str, Any]) -> str:
    error = source.get("holdout_mape")
    held_out = f", held-out error {error:.1%}" if isinstance(error, float) else ""
    return f"{source.get('name', 'unknown')} ({source.get('kind', 'unknown')}{held_out})"


def _sections(document: Document) -> Iterator[Section]:
    styles = variant_styles(("A", "B"))
    for i, pair in enumerate(document["pairs"]):
        figures: list[Figure] = []
        if i < MAX_DRAWN:
            ratios = ratio_figure(i, pair)
            figures = [*([ratios] if ratios else []), *distribution_figures(i, pair, styles), *scatter_figures(i, pair)]
        table = Table(("measure", "A", "B", "B/A", "95 % interval", "in words"), tuple(ratio_rows(pair).values()))
        intro = f"Ratios are B/A: 1 is no change. {method_text(pair)}"
        yield Section(f"pair-{i}", pair_name(pair), intro, tuple(figures), table, legend="variants")
    alone = [(side, names) for side, names in document["alone"].items() if names]
    if alone:
        notes = tuple(f"Only in {side.upper()}: {', '.join(names)}." for side, names in alone)
        yield Section("alone", "Not compared", "Variants that the other run does not have.", notes=notes)
    yield Section(
        "method", "How sure is this?", "What the intervals are, and what they are not.", notes=_notes(document)
    )


def _notes(document: Document) -> tuple[str, ...]:
    return tuple(note.replace("`", "") for note in document["notes"])


def _provenance(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """When, by what and from what: the comparison's own first, then both runs'."""
    for name in ("command", "started", "simserve_version", "revision"):
        yield name, _text(manifest.get(name))
    for side in SIDES:
        for name in ("command", "started", "simserve_version", "revision", "platform", "scenario_digest"):
            yield f"{side.upper()}: {name}", _text((manifest.get(side) or {}).get(name))


def _text(value: object) -> str:
    return "–" if value is None else str(value)
