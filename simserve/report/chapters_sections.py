"""The chapters' tables as sections of a calibration page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt

from simserve.report.aggregate import log_ticks
from simserve.report.content import Section
from simserve.report.figure import (
    Figure,
    Key,
    Table,
    TopChart,
    data,
    duration_axis,
    duration_tip,
    finish,
    number_axis,
    number_tip,
)
from simserve.report.words import NBSP, count, duration, number, plural, significant, times
from simserve.step_time.chapters_schema import Chapters, KvShape, Timed

_CACHED, _AGAIN = "with a cache", "recomputed"
_COLORS = {_CACHED: "var(--c0)", _AGAIN: "var(--c1)"}
_DASHES = {_CACHED: (1, 0), _AGAIN: (8, 3)}
_MIB = 1 << 20


def chapter_sections(chapters: Chapters) -> Iterator[Section]:
    """What a cache saves, what caches hold, what weights cost, and the three curves measured side by side."""
    yield Section("cache", "With and without a cache", _INTRO["cache"], tuple(_cache_figures(chapters)))
    yield Section("pushed", "Tokens pushed through the model", _pushed_sentence(chapters), table=_pushed(chapters))
    yield Section(
        "heads", "What caches hold", _INTRO["heads"], table=_kv_table(chapters), notes=tuple(_resident_notes(chapters))
    )
    words, notes = _weights_sentence(chapters), _weights_notes(chapters)
    figures = tuple(_weights_figures(chapters))
    yield Section("weights", "Weights", words, figures, _weights(chapters), notes=notes)
    words, notes = _curves_sentence(chapters), _disturbance(chapters)
    yield Section("curves", "Curves, measured side by side", words, table=_curves(chapters), notes=notes)


def _cache_figures(chapters: Chapters) -> list[Figure]:
    rows, last = chapters.cache, chapters.cache[-1]
    timed = {_CACHED: [row.cached.seconds for row in rows], _AGAIN: [row.recomputed.seconds for row in rows]}
    peaks = {_CACHED: [row.cached_peak_bytes for row in rows], _AGAIN: [row.recomputed_peak_bytes for row in rows]}
    lengths = [row.num_tokens for row in rows]
    step = (
        f"At {count(last.num_tokens)} tokens the next one takes {duration(last.cached.seconds)} with a cache and "
        f"{duration(last.recomputed.seconds)} without: {times(last.recomputed.seconds / last.cached.seconds)}."
    )
    peak = (
        f"The most that torch held at once above the weights, the cache included: {mib(last.cached_peak_bytes)} with a "
        f"cache of {count(last.num_tokens)} tokens, {mib(last.recomputed_peak_bytes)} without. Counted as: "
        f"{chapters.peak_method}."
    )
    table = Table(
        ("sequence", "with a cache", "90 % interval", "recomputed", "90 % interval", "ratio"),
        tuple(
            (
                count(row.num_tokens),
                duration(row.cached.seconds),
                interval(row.cached),
                duration(row.recomputed.seconds),
                interval(row.recomputed),
                times(row.recomputed.seconds / row.cached.seconds),
            )
            for row in rows
        ),
    )
    lines = zip(lengths, *peaks.values(), strict=True)
    held = Table(("sequence", *peaks), tuple((count(n), mib(one), mib(two)) for n, one, two in lines))
    keys = tuple(Key(name, color, " ".join(map(str, _DASHES[name]))) for name, color in _COLORS.items())
    seconds = _pair(lengths, timed, "step time")
    memory = _pair(lengths, {name: [value / _MIB for value in values] for name, values in peaks.items()}, "peak, MiB")
    return [
        Figure("chapters-step", "The next token's step", step, finish(seconds), table, "", keys),
        Figure("chapters-peak", "Peak memory of that step", peak, finish(memory), held, "", keys),
    ]


def _pair(lengths: Sequence[int], series: dict[str, list[float]], title: str) -> TopChart:
    """Both ways over the sequence's length, both axes logarithmic."""
    rows = [
        {"x": n, "y": float(f"{value:.5g}"), "way": name}
        for name, values in series.items()
        for n, value in zip(lengths, values, strict=True)
        if value > 0
    ]
    values = [value for way in series.values() for value in way if value > 0]
    low, high = min(values) * 0.8, max(values) * 1.25
    ticks = log_ticks(low, high, 6)
    is_time = title == "step time"
    axis = (duration_axis if is_time else number_axis)(f"{title}, logarithmic", ticks, grid=True)
    y = alt.Y("y:Q", axis=axis, scale=alt.Scale(type="log", domain=[low, high], nice=False))
    marks = [float(n) for n in lengths][:: -(-len(lengths) // 8)]
    scale = alt.Scale(type="log", base=2, domain=[lengths[0], max(lengths[-1], lengths[0] + 1)], nice=False)
    x = alt.X("x:Q", axis=number_axis("tokens of the sequence, logarithmic", marks), scale=scale)
    color = alt.Color("way:N", scale=alt.Scale(domain=list(_COLORS), range=list(_COLORS.values())), legend=None)
    dashes = alt.Scale(domain=list(_DASHES), range=[list(dash) for dash in _DASHES.values()])
    tip = duration_tip("y", "step") if is_time else number_tip("y", "MiB")
    tooltip = [alt.Tooltip("way:N", title="way"), alt.Tooltip("x:Q", title="tokens", format=","), tip]
    base = alt.Chart(data(rows)).encode(x, y, color, tooltip=tooltip)
    lines = base.mark_line(strokeWidth=2.2).encode(alt.StrokeDash("way:N", scale=dashes, legend=None))
    return alt.layer(lines, base.mark_point(size=40, filled=True))


def _pushed_sentence(chapters: Chapters) -> str:
    pushed = chapters.pushed
    ratio = pushed.recomputed / (pushed.cached + 1)
    return (
        f"A prompt of {count(pushed.num_prompt_tokens)} tokens and an answer of {count(pushed.num_output_tokens)}, "
        f"really generated by the {pushed.model} model and counted at its embedding: {count(ratio)} times the tokens "
        f"without a cache. Of the answer, {count(pushed.num_equal_tokens)} tokens agree between the two ways."
    )


def _pushed(chapters: Chapters) -> Table:
    pushed = chapters.pushed
    rows = (
        ("without a cache", count(pushed.recomputed), "NP + N(N − 1)/2", duration(pushed.recomputed_s)),
        (
            "with a cache",
            count(pushed.cached),
            "P + N − 1: the last token is never computed",
            duration(pushed.cached_s),
        ),
        ("with a cache, last token counted", count(pushed.cached + 1), "P + N", "–"),
    )
    return Table(("way", "tokens", "formula", "CPU time"), rows)


def _kv_table(chapters: Chapters) -> Table:
    rows = tuple(
        (
            row.name,
            row.attention,
            f"2 · {row.num_layers} · {row.num_kv_heads} · {row.head_dim} · {row.formula // _numbers(row)}",
            count(row.formula),
            count(row.measured),
            f"{significant(row.measured * 1024 / _MIB, 3)}{NBSP}MiB",
        )
        for row in chapters.kv_shapes
    )
    head = (
        "shape",
        "attention",
        "2 · layers · KV heads · head · bytes",
        "formula",
        "in the tensors",
        "1,024 tokens",
    )
    return Table(head, rows)


def _numbers(row: KvShape) -> int:
    return 2 * row.num_layers * row.num_kv_heads * row.head_dim


def _resident_notes(chapters: Chapters) -> Iterator[str]:
    shared = [
        f"{count(row.num_sequences)} × {count(row.num_tokens_each)} tokens: {mib(row.num_bytes)}"
        for row in chapters.residents
    ]
    if shared:
        total = chapters.residents[0].num_sequences * chapters.residents[0].num_tokens_each
        yield (
            f"A real cache of {chapters.residents_model} for {count(total)} tokens holds the same bytes however "
            f"they are shared: {'; '.join(shared)}."
        )


def _weights_sentence(chapters: Chapters) -> str:
    ran = {row.name: row.decode.seconds for row in chapters.weights.rows if row.decode}
    known = "as far as torch has kernels for them on this device; nothing here is estimated"
    if "fp32" not in ran or len(ran) < 2:
        return f"The model with its linear layers at four widths, {known}."
    fastest = min(ran, key=lambda name: ran[name])
    found = (
        f"No width decodes faster than fp32 at {duration(ran['fp32'])}"
        if fastest == "fp32"
        else f"{fastest} decodes fastest, at {duration(ran[fastest])} against {duration(ran['fp32'])} in fp32"
    )
    return f"The model with its linear layers at four widths, {known}. {found}."


def _weights(chapters: Chapters) -> Table:
    table = chapters.weights
    rows: list[tuple[str, ...]] = []
    for row in table.rows:
        if row.decode is None or row.prefill is None or row.weight_bytes is None:
            rows.append((row.name, "does not run here", "–", "–", "–", "–"))
        else:
            decode = duration(row.decode.seconds), interval(row.decode)
            prefill = duration(row.prefill.seconds), interval(row.prefill)
            rows.append((row.name, mib(row.weight_bytes), *decode, *prefill))
    decode_head = f"decode over {count(table.num_context_tokens)}", "90 % interval"
    prefill_head = f"prefill of {count(table.num_new_tokens)}", "90 % interval"
    return Table(("linear layers", "all weights", *decode_head, *prefill_head), tuple(rows))


def _weights_notes(chapters: Chapters) -> tuple[str, ...]:
    """How each width was had, or why not."""
    return tuple(
        f"{row.name}: {row.method}" + (f"; does not run here: {row.refused}" if row.refused else "")
        for row in chapters.weights.rows
    )


def _weights_figures(chapters: Chapters) -> list[Figure]:
    ran = [row for row in chapters.weights.rows if row.decode and row.prefill and row.weight_bytes]
    if len(ran) < 2:
        return []
    figures = []
    for field, title in (("decode", "Decode step by width"), ("prefill", "Prefill step by width")):
        steps: dict[str, Timed] = {row.name: getattr(row, field) for row in ran}
        slow, fast = max(steps, key=lambda n: steps[n].seconds), min(steps, key=lambda n: steps[n].seconds)
        caption = (
            f"Medians with their 90 % intervals: {fast} is fastest at {duration(steps[fast].seconds)}, {slow} "
            f"slowest at {duration(steps[slow].seconds)}."
        )
        figures.append(Figure(f"chapters-weights-{field}", title, caption, finish(_bars(steps), 46 * len(steps) + 40)))
    return figures


def _bars(steps: dict[str, Timed]) -> TopChart:
    rows = [{"name": name, "y": step.seconds, "low": step.low_s, "high": step.high_s} for name, step in steps.items()]
    y = alt.Y("name:N", sort=list(steps), axis=alt.Axis(title=None, grid=False, ticks=False, domain=False))
    x = alt.X("y:Q", axis=duration_axis("step time", ticks=5, grid=True), scale=alt.Scale(zero=True))
    tooltip = [alt.Tooltip("name:N", title="linear layers"), duration_tip("y", "step")]
    bars = alt.Chart(data(rows)).mark_bar(color="var(--c0)", height=20, cornerRadiusEnd=3).encode(x, y, tooltip=tooltip)
    whiskers = alt.Chart(data(rows)).mark_rule(color="var(--ink)", strokeWidth=1.5)
    return alt.layer(bars, whiskers.encode(alt.X("low:Q"), alt.X2("high:Q"), y))


def _curves_sentence(chapters: Chapters) -> str:
    knee, first = chapters.knee, chapters.batch[0]
    at = next(row for row in chapters.batch if row.batch_size == knee.knee)
    gain = at.batch_size * first.step.seconds / (first.batch_size * at.step.seconds)
    sure = f"{knee.low} to {knee.high}" if knee.low != knee.high else f"{knee.low} alone"
    return (
        f"All three timed in one shuffled run. The batch knee at context {count(first.num_context_tokens)} is "
        f"{knee.knee} (90 % of bootstrap draws: {sure}): {times(gain)} the throughput of one row at "
        f"{times(at.step.seconds / first.step.seconds)} the latency."
    )


def _disturbance(chapters: Chapters) -> tuple[str, ...]:
    """How many samples of the curves were disturbed, if any."""
    steps = [row.step for row in chapters.prefill] + [row.step for row in (*chapters.decode, *chapters.batch)]
    disturbed = sum(step.num_disturbed for step in steps)
    rule = "taken again; they count only where too few clean samples were had"
    return (f"{plural(disturbed, 'sample')} disturbed by other processes: {rule}.",) if disturbed else ()


def _curves(chapters: Chapters) -> Table:
    rows = [
        (
            f"prefill, {count(p.num_new_tokens)} tokens",
            duration(p.step.seconds),
            interval(p.step),
            f"{duration(p.step.seconds / p.num_new_tokens)} a token",
        )
        for p in chapters.prefill
    ]
    rows += [
        (f"decode over {count(d.num_context_tokens)}", duration(d.step.seconds), interval(d.step), "")
        for d in chapters.decode
    ]
    rows += [
        (
            f"decode, batch {count(b.batch_size)} over {count(b.num_context_tokens)}",
            duration(b.step.seconds),
            interval(b.step),
            f"{number(b.batch_size / b.step.seconds)} tokens/s",
        )
        for b in chapters.batch
    ]
    return Table(("step", "median", "90 % interval", "which is"), tuple(rows))


def interval(step: Timed) -> str:
    """``1.2 ms to 1.4 ms``; one sample has none."""
    if len(step.samples) == 1:
        return "one sample"
    return f"{duration(step.low_s)} to {duration(step.high_s)}"


def mib(num_bytes: float) -> str:
    """Bytes in MiB, three digits."""
    return f"{significant(num_bytes / _MIB, 3) if num_bytes < 100 * _MIB else count(num_bytes / _MIB)}{NBSP}MiB"


_INTRO = {
    "cache": "One more token after a sequence of some length: over a cache that holds the rest, or with the whole "
    "sequence through the model again.",
    "heads": "Bytes of the keys and values of one token, counted in the tensors of real caches in fp16, against the "
    "formula. Models too large for this machine are narrow elsewhere; their attention is as published.",
}
