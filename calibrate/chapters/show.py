"""The chapters' tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from simserve.step_time.chapters_schema import Chapters, Timed

_MIB = 1 << 20


def show_chapters(chapters: Chapters, console: Console) -> None:
    """Print every table."""
    made = chapters.provenance
    console.print(f"[bold]{chapters.name}[/]: {made.model}, {made.dtype}, {made.attention}, on {made.device_name}")
    for table in (_prefill(chapters), _decode(chapters), _batch(chapters), _cache(chapters), _kv(chapters)):
        console.print(table)
    pushed = chapters.pushed
    times = f"{pushed.recomputed / (pushed.cached + 1):.0f}×"
    console.print(
        f"Tokens pushed for {pushed.num_prompt_tokens} + {pushed.num_output_tokens}: {pushed.recomputed:,} without a "
        f"cache, {pushed.cached:,} with one ({pushed.cached + 1:,} with the last, which is never computed): {times}"
    )
    for row in chapters.residents:
        shared = f"{row.num_sequences} × {row.num_tokens_each:,} tokens"
        console.print(f"{chapters.residents_model}, {shared}: {row.num_bytes / _MIB:,.0f} MiB of cache")
    console.print(_weights(chapters))


def _table(title: str, names: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _prefill(chapters: Chapters) -> Table:
    rows = (
        (f"{r.num_new_tokens:,}", ms(r.step), f"{r.step.seconds / r.num_new_tokens * 1e3:.3f}")
        for r in chapters.prefill
    )
    return _table("Prefill", ("tokens", "ms", "ms a token"), rows)


def _decode(chapters: Chapters) -> Table:
    rows = ((f"{r.num_context_tokens:,}", ms(r.step)) for r in chapters.decode)
    return _table("Decode of one row", ("context", "ms"), rows)


def _batch(chapters: Chapters) -> Table:
    knee, first = chapters.knee, chapters.batch[0]
    rows = (
        (
            f"{r.batch_size}",
            ms(r.step),
            f"{r.batch_size / r.step.seconds:,.1f}",
            f"{r.batch_size * first.step.seconds / (first.batch_size * r.step.seconds):.2f}×",
            f"{r.step.seconds / first.step.seconds:.2f}×",
        )
        for r in chapters.batch
    )
    where = f"{knee.knee} ({knee.low} to {knee.high})"
    title = f"Batch curve at context {first.num_context_tokens:,}; knee at batch {where}"
    return _table(title, ("batch", "ms", "tokens/s", "throughput", "latency"), rows)


def _cache(chapters: Chapters) -> Table:
    rows = (
        (
            f"{r.num_tokens:,}",
            ms(r.cached),
            ms(r.recomputed),
            f"{r.recomputed.seconds / r.cached.seconds:.1f}×",
            f"{r.cached_peak_bytes / _MIB:,.1f}",
            f"{r.recomputed_peak_bytes / _MIB:,.1f}",
        )
        for r in chapters.cache
    )
    names = ("sequence", "cached, ms", "recomputed, ms", "ratio", "peak, MiB", "recomputed, MiB")
    return _table("The next token, with a cache and without", names, rows)


def _kv(chapters: Chapters) -> Table:
    rows = (
        (r.name, r.attention, f"{r.num_layers} × {r.num_kv_heads} × {r.head_dim}", r.dtype, f"{r.measured:,}")
        for r in chapters.kv_shapes
    )
    names = ("shape", "attention", "layers × KV heads × head", "dtype", "bytes per token")
    return _table("KV cache: bytes in its tensors, each equal to the formula", names, rows)


def _weights(chapters: Chapters) -> Table:
    table = chapters.weights
    rows = (
        (r.name, f"{(r.weight_bytes or 0) / _MIB:,.1f}", ms(r.decode), ms(r.prefill))
        if r.decode and r.prefill
        else (r.name, f"does not run here: {r.refused}", "", "")
        for r in table.rows
    )
    steps = f"decode over {table.num_context_tokens}, ms", f"prefill of {table.num_new_tokens}, ms"
    return _table("Weights", ("linear layers", "MiB", *steps), rows)


def ms(step: Timed) -> str:
    """Milliseconds, three digits or so."""
    return f"{step.seconds * 1e3:,.1f}" if step.seconds >= 0.01 else f"{step.seconds * 1e3:.2f}"
