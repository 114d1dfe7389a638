"""What a calibration page says, before any HTML: headline, warnings, key figures, sections, provenance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from simserve.report.calibration_curves import batch_figure, knee_of, knee_sentence, per_token_figure, single_steps
from simserve.report.calibration_data import held_out_steps, point_frame, rows_of, sample_frame, step_name
from simserve.report.calibration_error import error_figures, error_sentence, error_table, signed_share
from simserve.report.calibration_noise import noise_figures, typical_spread
from simserve.report.calibration_tables import table_figures
from simserve.report.chapters_sections import chapter_sections
from simserve.report.content import Section
from simserve.report.figure import Table
from simserve.report.headline import Badge
from simserve.report.style import VariantStyle
from simserve.report.surface import Surface, surface_figures
from simserve.report.words import NOTHING, count, duration, plural, share, times
from simserve.step_time.chapters_schema import Chapters
from simserve.step_time.knee import KneeInterval
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import Profile, Provenance

MAX_LISTED_POINTS = 400
CLOCKS = {"process_cpu": "process CPU", "wall": "wall", "cuda_events": "CUDA event"}
_ORIGINS = {
    "forward": "bare forwards of the model; an engine's own work per step comes on top",
    "engine": "whole steps of an engine, its host work included",
    "server": "a server's answers, as its clients see them",
    "imported": "imported: measured by others",
}


@dataclass(frozen=True)
class CalibrationContent:
    """The whole page."""

    name: str
    headline: str
    badges: list[Badge]
    facts: list[tuple[str, str]]
    key_figures: Table
    sections: list[Section]
    provenance: list[tuple[str, str]]
    manifest: list[tuple[str, str]]
    styles: tuple[VariantStyle, ...] = ()


@dataclass(frozen=True)
class _Parts:
    profile: Profile
    samples: pd.DataFrame
    points: pd.DataFrame
    knee: KneeInterval


def calibration_content(profile: Profile, chapters: Chapters | None = None) -> CalibrationContent:
    """Everything that the template prints, in its order."""
    samples = sample_frame(profile)
    parts = _Parts(profile, samples, point_frame(samples), knee_of(profile, samples))
    made = profile.provenance
    sections = [section for section in _sections(parts, chapters) if section.figures or section.table or section.notes]
    return CalibrationContent(
        name=profile.name,
        headline=_headline(profile),
        badges=_badges(parts),
        facts=_facts(parts),
        key_figures=_key_figures(parts),
        sections=sections,
        provenance=[*_provenance(made), ("digest", profile.digest)],
        manifest=[(name, f"{value:,}") for name, value in made.dimensions.model_dump().items()],
    )


def _headline(profile: Profile) -> str:
    made, curve = profile.provenance, profile.batch_curve
    one, longest = curve.points[0], profile.prefill.rows[-1]
    at = next(point for point in curve.points if point.batch_size == curve.knee)
    gain = (
        f"throughput grows {times(at.throughput_ratio)} up to the knee at batch {curve.knee:,}"
        if curve.knee > one.batch_size
        else "larger batches gain little"
    )
    error = profile.held_out.all.mean
    known = f"; interpolated steps are off by {share(error)} on average" if error is not None else ""
    return (
        f"{made.model} in {made.precision} on {made.device_name}: a decode step of {plural(one.batch_size, 'row')} "
        f"takes {duration(one.seconds)}, a prefill of {count(longest.row)} tokens {duration(longest.seconds[0])}, "
        f"and {gain}{known}."
    )


def _badges(parts: _Parts) -> list[Badge]:
    made, samples = parts.profile.provenance, parts.samples
    found = []
    if made.origin == "imported":
        source = f" Source: {made.source}." if made.source else ""
        found.append(Badge("imported", f"These figures were measured by others and not on this machine.{source}"))
    dirty = int(samples["dirty"].sum())
    lost = int((parts.points["num_dirty"] == parts.points["num_samples"]).sum())
    if lost:
        where = f"{plural(lost, 'point')} of {len(parts.points):,}"
        found.append(
            Badge("disturbed", f"Other processes ran during every sample of {where}; their medians may be off.")
        )
    elif dirty > len(samples) // 4:
        found.append(Badge("busy machine", f"Other processes disturbed {dirty:,} of {len(samples):,} samples."))
    if parts.profile.held_out.all.mean is None:
        found.append(Badge("error not known", "No measured step was held out, so nothing says how far off it may be."))
    return found


def _facts(parts: _Parts) -> list[tuple[str, str]]:
    made, samples = parts.profile.provenance, parts.samples
    dirty = int(samples["dirty"].sum())
    disturbed = f", {dirty:,} of them disturbed" if dirty else ", none disturbed"
    how = ", ".join(
        text
        for text in (
            f"{made.attention} attention" if made.attention else "",
            f"{made.kv_cache} cache" if made.kv_cache else "",
            plural(made.threads, "thread") if made.threads and made.device == "cpu" else "",
            f"{made.tensor_parallel} devices" if made.tensor_parallel > 1 else "",
        )
        if text
    )
    return [
        ("model", f"{made.model}, {made.precision}" + (f" ({made.weights} weights)" if made.weights else "")),
        ("device", made.device_name),
        ("steps", _ORIGINS[made.origin] + (f" ({made.source})" if made.source and made.origin != "imported" else "")),
        ("how", how or NOTHING),
        ("clock", f"{CLOCKS[made.clock]}: {made.clock_reason}"),
        ("samples", f"{plural(len(samples), 'step')} at {plural(len(parts.points), 'point')}{disturbed}"),
        ("measured", f"{made.date}, in {duration(made.duration_s)}" if made.duration_s else made.date),
        ("held-out error", error_sentence(parts.profile.held_out.all)),
    ]


def _key_figures(parts: _Parts) -> Table:
    profile, curve = parts.profile, parts.profile.batch_curve
    prefill, decode = profile.prefill.rows, profile.decode.rows
    last, first = prefill[-1], decode[0]
    valid, kv, spread = profile.validity, profile.kv_bytes_per_token, typical_spread(parts.points)
    rows = [
        ("decode, one row" if first.row == 1 else f"decode, {first.row:,} rows", _range(first.contexts, first.seconds)),
        (f"decode, {decode[-1].row:,} rows", _range(decode[-1].contexts, decode[-1].seconds)),
        (
            f"prefill, {last.row:,} tokens",
            f"{duration(last.seconds[0])}, {duration(last.seconds[0] / last.row)} a token",
        ),
        ("batch knee", knee_sentence(curve, parts.knee)),
        ("held-out error", error_sentence(profile.held_out.all)),
        ("spread of a point", f"{share(spread)} (coefficient of variation, middle point)" if spread else NOTHING),
        *_repeated(profile),
        *_between_runs(profile),
        ("KV cache", f"{kv.measured:,} bytes a token, equal to the formula" if kv else "not measured"),
        (
            "measured range",
            f"prefill up to {valid.max_prefill_tokens:,} tokens over {valid.max_prefill_context:,}; decode up to batch "
            f"{valid.max_batch_size:,} over {valid.min_decode_context:,} to {valid.max_decode_context:,}",
        ),
    ]
    return Table(("figure", "measured"), tuple(rows))


def _repeated(profile: Profile) -> list[tuple[str, str]]:
    """What decodes take that follow steps of their own decision, where chains of them were timed."""
    found = profile.repeated
    if found is None:
        return []
    parts = [f"{ratio:.3f} at {size:,}" for size, ratio in zip(found.batch_sizes, found.ratios, strict=True)]
    return [("decode behind its own kind, over one behind others, by batch size", ", ".join(parts))]


def _between_runs(profile: Profile) -> list[tuple[str, str]]:
    """What repeats of the run and visits of its anchor say, where they were made."""
    noise, drift, rows = profile.noise, profile.drift, []
    if noise is not None:
        between = f"{share(noise.shared)} that all points of a run share, {share(noise.per_point)} of each point's own"
        rows.append(("between runs", f"{between} (standard deviations; {noise.basis})"))
    if drift is not None:
        where = f"batch {drift.batch_size:,} over {drift.num_context_tokens:,}"
        trend = f"{signed_share(drift.trend)} from the first visit to the last, within {share(drift.spread)}"
        rows.append(("drift of the anchor", f"{trend} ({plural(drift.num_visits, 'visit')} of {where})"))
    return rows


def _range(contexts: tuple[int, ...], seconds: tuple[float, ...]) -> str:
    return f"{duration(seconds[0])} at context {contexts[0]:,}, {duration(seconds[-1])} at {contexts[-1]:,}"


def _sections(parts: _Parts, chapters: Chapters | None) -> Iterator[Section]:
    profile = parts.profile
    maps = table_figures(profile)
    context, batch, prefill = surface_figures(_surface(parts))
    decode = (maps["decode"], context, batch)
    yield Section("decode", "Decode steps", _INTRO["curves"], decode, narrow=True)
    yield Section(
        "prefill", "Prefill steps", _INTRO["curves"], (maps["prefill"], prefill, per_token_figure(profile)), narrow=True
    )
    yield Section("batch", "Batch curve", _INTRO["batch"], (batch_figure(profile, parts.samples, parts.knee),))
    errors = error_figures(held_out_steps(profile, parts.points))
    table = error_table(profile.held_out) if profile.held_out.all.num_points else None
    yield Section("error", "Held-out error", _INTRO["error"], tuple(errors), table)
    yield Section("noise", "Noise and drift", _INTRO["noise"], tuple(noise_figures(parts.samples, parts.points)))
    yield _kv_section(profile)
    if chapters is not None:
        yield from chapter_sections(chapters)
    yield Section("points", "Every point", _INTRO["points"], table=_point_table(parts.points), folded=True)
    yield Section("notes", "Notes", _INTRO["notes"], notes=tuple(profile.provenance.notes))


def _surface(parts: _Parts) -> Surface:
    valid, step_time = parts.profile.validity, ProfileStepTime(parts.profile)
    limits = valid.max_decode_context, valid.max_batch_size, valid.max_prefill_tokens
    return Surface("profile", step_time, step_time.source, *limits, single_steps(parts.samples))


def _kv_section(profile: Profile) -> Section:
    kv, made = profile.kv_bytes_per_token, profile.provenance
    if kv is None:
        return Section("kv", "KV cache", "")
    size = made.dimensions
    formula = f"2 · {size.num_layers} · {size.num_kv_heads} · {size.head_dim} · {kv.formula // _numbers_of(profile)}"
    rows = (("in the cache's tensors", f"{kv.measured:,}"), (f"formula: {formula}", f"{kv.formula:,}"))
    return Section("kv", "KV cache", _INTRO["kv"], table=Table(("KV cache", "bytes per token"), rows))


def _numbers_of(profile: Profile) -> int:
    size = profile.provenance.dimensions
    return 2 * size.num_layers * size.num_kv_heads * size.head_dim


def _point_table(points: pd.DataFrame) -> Table:
    lines = [
        (
            step_name(p) + (" (held out)" if p.held_out else ""),
            f"{p.num_samples:,}" + (f" ({p.num_dirty:,} disturbed)" if p.num_dirty else ""),
            duration(p.median_s),
            share(None if pd.isna(p.spread) else p.spread),
        )
        for p in rows_of(points)[:MAX_LISTED_POINTS]
    ]
    return Table(("step", "samples", "median", "spread"), tuple(lines))


def _provenance(made: Provenance) -> list[tuple[str, str]]:
    skipped = {"dimensions", "notes"}
    return [
        (name.replace("_", " "), NOTHING if value is None else str(value))
        for name, value in made.model_dump(mode="json").items()
        if name not in skipped
    ]


_INTRO = {
    "curves": "Curves are what a simulation reads from the table; filled marks are medians, rings are single steps, "
    "and crosses are steps that other processes disturbed.",
    "batch": "What batching buys: tokens per second against the time that each of them takes.",
    "error": "Some measured points are kept from the fit and then predicted: this is what a step between measured ones "
    "may be off by.",
    "noise": "Samples are taken in rounds over all points in random order, so that a drifting machine cannot bend a "
    "curve; here they stand in the order in which they were taken.",
    "kv": "Bytes that a token really occupies, counted in the tensors of a cache that the model filled, against "
    "2 · layers · KV heads · head dimension · bytes of a number.",
    "points": "Median and spread of each measured shape, over its clean samples.",
    "notes": "What the calibration itself had to say.",
}
