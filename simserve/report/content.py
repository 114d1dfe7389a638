"""What the page says, before any HTML: header, warnings, table of variants, sections of figures, provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from simserve.fairness import has_limits
from simserve.metrics import timeline
from simserve.report.aggregate import group_reasons
from simserve.report.cache import cache_figures
from simserve.report.comparison import MeasureRow, all_rows, key_rows
from simserve.report.controls import Control
from simserve.report.figure import Figure, Legend, Table
from simserve.report.headline import Badge, badges, headline, source_sentence
from simserve.report.hits import hit_figures
from simserve.report.latency import latency_figures
from simserve.report.load import load_figures
from simserve.report.room import room_figures
from simserve.report.slots import slot_figures, slot_table
from simserve.report.style import VariantStyle, variant_styles
from simserve.report.surface import Surface, surface_figures
from simserve.report.tenants import INTRO as TENANTS_INTRO
from simserve.report.tenants import MAX_LISTED_OPEN, tenant_figures, tenant_notes, tenant_table
from simserve.report.traffic import traffic_figures, traffic_sentence
from simserve.report.words import plural
from simserve.report.work import work_figures
from simserve.speculation.build import probabilities
from simserve.speculation.formula import mean_tokens_per_pass

if TYPE_CHECKING:
    from simserve.simulate import RunResult, VariantResult
    from simserve.step_time.source import StepTimeSource

MAX_REASONS = 20  # listed per variant
MAX_IDS = 8  # named per reason
MAX_LEAVES = 32  # of a list or a mapping in the manifest
MAX_SURFACES = 4


@dataclass(frozen=True)
class Section:
    """A part of the page: figures, perhaps a table of its own, with a sentence that says what to look for."""

    id: str
    title: str
    intro: str
    figures: tuple[Figure, ...] = ()
    table: Table | None = None
    legend: Legend = ""
    notes: tuple[str, ...] = ()
    narrow: bool = False
    folded: bool = False  # the table is long and waits behind a click
    controls: tuple[Control, ...] = ()  # choices that all of its charts follow


@dataclass(frozen=True)
class Content:
    """The whole page."""

    name: str
    headline: str
    badges: list[Badge]
    facts: list[tuple[str, str]]
    styles: list[VariantStyle]
    descriptions: dict[str, str]
    key_rows: list[MeasureRow]
    all_rows: list[MeasureRow]
    sections: list[Section]
    provenance: list[tuple[str, str]]
    manifest: list[tuple[str, str]]


def page_content(result: RunResult, manifest: Mapping[str, Any]) -> Content:
    """Everything that the template prints, in its order."""
    variants = result.variants
    summaries = _summaries(result)
    sources = {name: variant.step_time.source for name, variant in variants.items()}
    has_slo = has_limits(result.workload.table.tenants, result.scenario.slo)
    return Content(
        name=result.scenario.name,
        headline=headline(summaries),
        badges=badges(sources, summaries),
        facts=_facts(result),
        styles=variant_styles(variants),
        descriptions={name: _describe(variant) for name, variant in variants.items()},
        key_rows=key_rows(summaries, has_slo),
        all_rows=all_rows(summaries, has_slo),
        sections=[section for section in _sections(result) if section.figures or section.table or section.notes],
        provenance=[(name, text) for name, text in flat(manifest) if "." not in name],
        manifest=[(name, text) for name, text in flat(manifest) if "." in name],
    )


def _summaries(result: RunResult) -> dict[str, dict[str, Any]]:
    """By variant its measures, and what is simulated."""
    return {name: {**v.summary, "simulated_model": v.model.entry()} for name, v in result.variants.items()}


def _facts(result: RunResult) -> list[tuple[str, str]]:
    models = dict.fromkeys(variant.scenario.model for variant in result.variants.values())
    steps = _sources([variant.step_time.source for variant in result.variants.values()])
    return [
        ("model", ", ".join(models)),
        ("step times", "; ".join(steps)),
        ("workload", traffic_sentence(result.workload.table, result.workload.clients.concurrency)),
        ("seed", str(result.scenario.seed)),
    ]


def _sources(sources: Sequence[StepTimeSource]) -> Iterator[str]:
    """Where step times come from, once each; what was estimated in the same way for the same device, once for all."""
    kinds: dict[tuple[object, ...], list[StepTimeSource]] = {}
    for source in dict.fromkeys(sources):
        estimated = (source.kind, source.device, source.holdout_mape)
        kinds.setdefault((source.name,) if source.calibrated else estimated, []).append(source)
    for alike in kinds.values():
        first = alike[0]
        yield source_sentence(first if len(alike) == 1 else replace(first, name=f"{len(alike)} {first.kind}s"))


def _describe(variant: VariantResult) -> str:
    """The variant's engine in a few words."""
    scenario, engine = variant.scenario, variant.scenario.engine
    cache = engine.kv_cache
    reserve = getattr(cache, "reserve", None)
    allocator = str(getattr(cache, "allocator", "none"))
    kind = "no cache" if allocator == "none" else f"{allocator} cache"
    words = [engine.policy, kind + (f" reserving {reserve}" if reserve else ""), plural(engine.max_num_seqs, "slot")]
    if getattr(scenario, "weights", None):
        words.append(f"{scenario.weights} weights")
    if getattr(scenario, "attention", None):
        words.append(plural(int(variant.model.entry()["num_kv_heads"]), "KV head"))
    speculation = getattr(engine, "speculation", None)
    if speculation is not None:
        words.append(f"drafts of {speculation.draft_tokens}")
    return ", ".join(words)


def _sections(result: RunResult) -> Iterator[Section]:
    styles = variant_styles(result.variants)
    records = {name: variant.records for name, variant in result.variants.items()}
    summaries = _summaries(result)
    timelines = {name: timeline(record) for name, record in records.items()}
    latency = latency_figures(styles, records, summaries, result.scenario.slo)
    yield Section("latency", "Latency", _INTRO["latency"], tuple(latency), legend="variants")
    yield _tenants(result, styles, summaries)
    load = load_figures(styles, timelines, summaries)
    yield Section("load", "Over time", _INTRO["load"], tuple(load), legend="variants")
    yield Section("work", "Work", _INTRO["work"], tuple(work_figures(summaries, _expected(result))))
    yield Section("room", "Room", _INTRO["room"], tuple(room_figures(result.variants, summaries)))
    cache = (*cache_figures(styles, timelines, summaries), *hit_figures(styles, timelines, summaries))
    yield Section("cache", "Cache", _INTRO["cache"], cache, legend="cache")
    slots, left_out = slot_figures(styles, records)
    yield Section(
        "slots",
        "Slots",
        _INTRO["slots"],
        tuple(slots),
        slot_table(styles, records),
        "slots" if slots else "",
        (left_out,) if left_out else (),
    )
    yield _steps(result)
    traffic = tuple(traffic_figures(result.workload.table))
    yield Section("workload", "Workload", _INTRO["workload"], traffic, notes=tuple(result.workload.notes))
    yield _refused(result)


def _tenants(result: RunResult, styles: list[VariantStyle], summaries: Mapping[str, Mapping[str, Any]]) -> Section:
    """Nothing where the requests are nobody's in particular."""
    tenants, slo = result.workload.table.tenants, result.scenario.slo
    if tenants is None:
        return Section("tenants", "Tenants", TENANTS_INTRO)
    figures = tuple(tenant_figures(styles, summaries, tenants, slo))
    table = tenant_table(styles, summaries, tenants, slo)
    notes, folded = tenant_notes(tenants, len(styles)), len(table.rows) > MAX_LISTED_OPEN
    return Section("tenants", "Tenants", TENANTS_INTRO, figures, table, "variants", notes, folded=folded)


def _expected(result: RunResult) -> dict[str, float]:
    """By variant that speculates the tokens that a pass gives by the closed form."""
    scenarios = {name: variant.scenario for name, variant in result.variants.items()}
    return {
        name: mean_tokens_per_pass(probabilities(scenario, speculation))
        for name, scenario in scenarios.items()
        if (speculation := getattr(scenario.engine, "speculation", None)) is not None
    }


def _steps(result: RunResult) -> Section:
    surfaces = _surfaces(result)
    figures = [figure for surface in surfaces[:MAX_SURFACES] for figure in surface_figures(surface)]
    notes = [f"{surface.source.name}: {surface.source.note}" for surface in surfaces if surface.source.note]
    if len(surfaces) > MAX_SURFACES:
        notes.append(f"Drawn for the first {MAX_SURFACES} of {len(surfaces)} step-time models.")
    intro = _INTRO["step-times" if any(surface.source.points for surface in surfaces) else "formula"]
    return Section("step-times", "Step times", intro, tuple(figures), notes=tuple(notes), narrow=True)


def _surfaces(result: RunResult) -> list[Surface]:
    """One per step-time model, over the range that the variants that used it needed."""
    users: dict[tuple[str, ...], list[VariantResult]] = {}
    for variant in result.variants.values():
        source = variant.step_time.source
        users.setdefault((source.kind, source.name, source.device, variant.scenario.model), []).append(variant)
    table = result.workload.table
    longest = int((table.num_prompt_tokens + table.num_output_tokens).max(initial=1))
    surfaces = []
    for i, variants in enumerate(users.values()):
        spans = [variant.records.spans.columns() for variant in variants]
        rows = max(int(columns["num_decodes"].max(initial=1)) for columns in spans)
        prefill = max(int(columns["num_prefill_tokens"].max(initial=1)) for columns in spans)
        step_time = variants[0].step_time
        surfaces.append(Surface(f"m{i}", step_time, step_time.source, longest, rows, prefill))
    return surfaces


def _refused(result: RunResult) -> Section:
    rows = []
    for name, variant in result.variants.items():
        groups = group_reasons(variant.records.requests.reject_reason)
        for reason, ids in groups[:MAX_REASONS]:
            more = f" and {len(ids) - MAX_IDS:,} more" if len(ids) > MAX_IDS else ""
            rows.append((name, reason, f"{len(ids):,}", ", ".join(map(str, ids[:MAX_IDS])) + more))
        if len(groups) > MAX_REASONS:
            rows.append((name, f"{len(groups) - MAX_REASONS} other reasons", "", ""))
    table = Table(("variant", "reason (the first of its kind)", "requests", "ids"), tuple(rows)) if rows else None
    return Section("rejected", "Requests turned away", _INTRO["rejected"], table=table)


def flat(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of a manifest as (dotted path, text): of a thousand tenants or lengths the first, as the file has all."""
    if isinstance(value, Mapping) and value:
        for key, child in islice(value.items(), MAX_LEAVES):
            yield from flat(child, f"{path}.{key}" if path else str(key))
        if len(value) > MAX_LEAVES:
            yield f"{path}.…", f"{len(value) - MAX_LEAVES:,} more in the file"
    elif isinstance(value, list | tuple):
        more = f", … ({len(value):,} in the file)" if len(value) > MAX_LEAVES else ""
        yield path, ", ".join(map(str, value[:MAX_LEAVES])) + more or "–"
    else:
        yield path, "–" if value is None else str(value)


_INTRO = {
    "latency": "Each curve says which share of the requests was served at least that fast: further left is better, and "
    "a steep curve treats everyone alike. Point at a chart to read it at one share.",
    "load": "Means over short, equal spells of time from the first arrival; a curve ends with its last answer.",
    "work": "Every token that a step computes is pushed through the model. With a cache each is needed once, and the "
    "last of an answer never; what is computed again was not kept.",
    "room": "A token's keys and values take 2 · layers · KV heads · head dim numbers; what weights and the rest leave "
    "of the memory, divided by that, is how many tokens can be held.",
    "cache": "What is filled holds tokens; what is hatched or dotted is held or blocked without holding any.",
    "slots": "One row per slot: who sat in it, and whether that request was being prefilled, was producing tokens, or "
    "had finished and waited for the rest of its batch.",
    "step-times": "Curves are what the simulation used; marks are steps that were measured.",
    "formula": "Curves are what the simulation used. They come from a formula: no step was measured.",
    "workload": "What arrived: the same requests at the same times for every variant.",
    "rejected": "Refused when they arrived, once and for all: they can never be served under the limits given, or "
    "(429) too many were waiting and their clients did not come again.",
}
