"""What the page of a validation says, before any HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simserve.report.content import Section, flat
from simserve.report.figure import Table
from simserve.report.headline import Badge
from simserve.report.style import VariantStyle, variant_styles
from simserve.report.validate_charts import SIDES, error_figure, latency_figures, over_time_figures
from simserve.report.validate_words import error_table, label, steps_text, summary_text
from simserve.report.words import NOTHING, plural

Document = Mapping[str, Any]
MAX_MEMBERS = 24  # of a step, listed


@dataclass(frozen=True)
class ValidationContent:
    """The whole page."""

    name: str
    headline: str
    badges: list[Badge]
    facts: list[tuple[str, str]]
    styles: list[VariantStyle]
    errors: Table
    sections: list[Section]
    provenance: list[tuple[str, str]]
    manifest: list[tuple[str, str]]


def validation_content(document: Document, curves: Mapping[str, Any], manifest: Mapping[str, Any]) -> ValidationContent:
    """Everything that the template prints, in its order."""
    entries, limit = _entries(document), _limit(document)
    leaves = list(flat(manifest))
    head, rows = error_table(entries, limit)
    return ValidationContent(
        name=str(document["scenario"]),
        headline=summary_text(document),
        badges=list(_badges(document, manifest)),
        facts=list(_facts(document)),
        styles=variant_styles(SIDES),
        errors=Table(head, tuple(rows)),
        sections=list(_sections(document, curves, entries, limit)),
        provenance=[(name, text) for name, text in leaves if "." not in name],
        manifest=[(name, text) for name, text in leaves if "." in name],
    )


def _entries(document: Document) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in document["metrics"].items():
        found |= {name: value} if "error" in value else {f"{name}.{leaf}": one for leaf, one in value.items()}
    return found


def _limit(document: Document) -> float | None:
    return document["limit"]["max_error"] if document.get("limit") else None


def _badges(document: Document, manifest: Mapping[str, Any]) -> Iterator[Badge]:
    limit = document.get("limit")
    if limit and limit["exceeding"]:
        names = [label(name) for name in limit["exceeding"]]
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        listed = ", ".join(names[:6]) + more
        yield Badge("over the limit", f"Beyond {100 * limit['max_error']:.3g} % and beyond the noise: {listed}.")
    if not manifest.get("step_time", {}).get("calibrated", True):
        yield Badge("uncalibrated", "Step times were not measured but estimated: the errors are of the estimate.")
    steps = document["steps"]
    if steps is not None and steps["first_difference"] is not None:
        yield Badge("other steps", steps_text(steps))
    made = [note for note in document["notes"] if "was made with" in note]
    if made:
        yield Badge(
            "other settings", f"{plural(len(made), 'setting')} of the run and of the scenario differ; see the notes."
        )


def _facts(document: Document) -> Iterator[tuple[str, str]]:
    engine = document["engine"]
    yield "measured on", f"{engine['name']} ({engine['kind']})"
    yield "runs", ", ".join(engine["runs"])
    if document["steps"] is not None:
        yield "steps", steps_text(document["steps"])
    known = document["known_beforehand"]
    if known:
        yield "step times", known[0].removeprefix("step times: ")


def _sections(
    document: Document, curves: Mapping[str, Any], entries: Mapping[str, Any], limit: float | None
) -> Iterator[Section]:
    styles = variant_styles(SIDES)
    if document["steps"] is not None:
        yield _steps(document["steps"])
    errors = error_figure(entries, limit)
    if errors:
        yield Section("errors", "Errors against noise", _INTRO["errors"], (errors,))
    latencies = tuple(latency_figures(curves, entries, styles))
    if latencies:
        yield Section("latency", "Latency, both overlaid", _INTRO["latency"], latencies, legend="variants")
    if curves["over_time"] is not None:
        time = tuple(over_time_figures(curves, styles))
        yield Section("time", "Over time", _INTRO["time"], time, legend="variants")
    yield Section("known", "Known beforehand", _INTRO["known"], notes=tuple(document["known_beforehand"]))
    if document["notes"]:
        yield Section("notes", "Notes", _INTRO["notes"], notes=tuple(document["notes"]))


def _steps(steps: Mapping[str, Any]) -> Section:
    """How many are the same; of the first that is not, a row per request on either side, those that differ first."""
    first = steps["first_difference"]
    table = None
    if first is not None:
        totals = [(name, *(_told(first[side], key) for side in SIDES)) for key, name in _TOTALS.items()]
        marked = [(*row, "differs" if row[1] != row[2] and NOTHING not in row else "") for row in totals]
        members = [_members(first[side]) for side in SIDES]
        pairs = {i: [side.get(i, NOTHING) for side in members] for i in sorted(members[0] | members[1])}
        rows = sorted(pairs.items(), key=lambda pair: pair[1][0] == pair[1][1])
        marked += [(f"request {i:,}", *pair, "differs" if pair[0] != pair[1] else "") for i, pair in rows[:MAX_MEMBERS]]
        if len(rows) > MAX_MEMBERS:
            marked.append((f"and {len(rows) - MAX_MEMBERS} more requests", "", "", "in validation.json"))
        table = Table((f"step {first['step']:,} of {first['run']}", *SIDES, ""), tuple(marked))
    return Section("steps", "Steps", f"{steps_text(steps)} {_INTRO['steps']}", table=table)


def _told(side: Mapping[str, Any] | None, key: str) -> str:
    if side is None:
        return "had ended"
    return NOTHING if side[key] is None else f"{side[key]:,}"


def _members(side: Mapping[str, Any] | None) -> dict[int, str]:
    """What each request did in a step, in words."""
    if side is None:
        return {}
    words: dict[int, list[str]] = {}
    for work in side["prefills"]:
        did = f"prefills {work['num_new_tokens']:,} over {work['num_context_tokens']:,}"
        words.setdefault(work["id"], []).append(did)
    for work in side["decodes"]:
        words.setdefault(work["id"], []).append(f"decodes over {work['num_context_tokens']:,}")
    for what in ("admitted", "preempted"):
        for i in side[what]:
            words.setdefault(i, []).append(what)
    return {i: ", ".join(parts) for i, parts in words.items()}


_TOTALS = {"num_batched_tokens": "tokens in the step", "free_blocks": "free blocks"}
_INTRO = {
    "errors": "Marks are errors; the grey bar behind one is how much the real engine differs from itself.",
    "latency": "Which share of the requests was served at least that fast, as measured and as predicted.",
    "time": "Both from the first arrival on. Tokens after a request's first are taken as evenly spread up to its last.",
    "steps": "A composition is who prefills and who decodes, over how many cached tokens, who was admitted and "
    "preempted, and how many blocks are free. Requests come to both at the same step, so no clock takes part.",
    "known": "What the prediction was made from. None of it came out of the run, but what is said to be recorded.",
    "notes": "What a reader of the figures must know.",
}
