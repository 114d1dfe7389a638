"""A profile as tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable

from simserve.request import Batch
from simserve.step_time.composition import ComposedSteps
from simserve.step_time.no_cache import no_cache_table
from simserve.step_time.profile_schema import (
    BatchCurve,
    HeldOut,
    HeldOutError,
    NoCacheTable,
    Profile,
    RepeatedSteps,
    Table,
)


def show(profile: Profile, console: Console) -> None:
    """Print the step-time tables, the batch curve with its knee, the KV check and the held-out error."""
    made = profile.provenance
    how = ", ".join(part for part in (made.model, made.precision, made.attention) if part)
    console.print(f"[bold]{profile.name}[/]: {how}, on {made.device_name}")
    console.print(_surface(profile.prefill, "Prefill, ms", "new tokens", per_token=True))
    console.print(_surface(profile.decode, "Decode step, ms", "batch size", per_token=False))
    whole = no_cache_table(profile)
    if whole is not None:
        console.print(_whole_forwards(profile, whole))
    console.print(_curve(profile.batch_curve))
    if profile.repeated is not None:
        console.print(_repeated(profile.repeated))
    kv = profile.kv_bytes_per_token
    if kv is not None:
        console.print(f"KV cache: {kv.measured:,} bytes per token in its tensors = formula {kv.formula:,}")
    error = profile.held_out
    for kind in HeldOut.model_fields:
        found = getattr(error, kind)
        if found is not None and found.num_points:
            console.print(f"Held-out error, {kind}: {_error(found)}")
    _show_noise(profile, console)
    for note in made.notes:
        console.print(f"[yellow]note[/]: {note}")


def _show_noise(profile: Profile, console: Console) -> None:
    noise, drift = profile.noise, profile.drift
    if noise is not None:
        between = f"{noise.shared:.1%} shared by all points, {noise.per_point:.1%} of each ({noise.basis})"
        console.print(f"Noise (standard deviations): {noise.within_run:.1%} within a run; between runs {between}")
    if drift is not None:
        step = f"a decode of batch {drift.batch_size} over {drift.num_context_tokens:,} tokens"
        seen = f"{drift.trend:+.1%} from first to last of {drift.num_visits} visits, range {drift.spread:.1%}"
        console.print(f"Drift of {step}: {seen}")


def _surface(table: Table, title: str, row_name: str, per_token: bool) -> RichTable:
    contexts = sorted({context for row in table.rows for context in row.contexts})
    out = RichTable(title=title, title_justify="left", caption="columns: cached tokens per sequence")
    out.add_column(row_name, justify="right")
    for context in contexts:
        out.add_column(f"{context:,}", justify="right")
    if per_token:
        out.add_column("ms/token", justify="right")
    for row in table.rows:
        cells = dict(zip(row.contexts, row.seconds, strict=True))
        texts = [_ms(cells[context]) if context in cells else "" for context in contexts]
        out.add_row(f"{row.row:,}", *texts, *([_ms(row.seconds[0] / row.row)] if per_token else []))
    return out


def _whole_forwards(profile: Profile, whole: NoCacheTable) -> RichTable:
    out = RichTable(
        title="Next token without a cache, ms", title_justify="left", caption="whole sequences, computed anew"
    )
    for name in ("tokens", "without", "with a cache", "times"):
        out.add_column(name, justify="right")
    steps = ComposedSteps(profile.prefill, profile.decode)
    for length, seconds in zip(whole.num_tokens, whole.seconds, strict=True):
        cached = steps.ramp(Batch(num_decodes=1, decode_context_tokens=length - 1), 0).first_s
        out.add_row(f"{length:,}", _ms(seconds), _ms(cached), f"{seconds / cached:.1f}×")
    return out


def _curve(curve: BatchCurve) -> RichTable:
    title = f"Batch curve at context {curve.num_context_tokens:,}; knee at batch {curve.knee}"
    out = RichTable(title=title, title_justify="left", caption="knee: the last doubling that gained √2 in throughput")
    for name in ("batch size", "step, ms", "tokens/s", "throughput", "latency"):
        out.add_column(name, justify="right")
    for point in curve.points:
        style = "bold green" if point.batch_size == curve.knee else None
        ratios = f"{point.throughput_ratio:.2f}×", f"{point.latency_ratio:.2f}×"
        out.add_row(f"{point.batch_size}", _ms(point.seconds), f"{point.tokens_per_s:,.1f}", *ratios, style=style)
    return out


def _repeated(repeated: RepeatedSteps) -> RichTable:
    title = "Decodes behind steps of their own decision, over those behind others"
    out = RichTable(title=title, title_justify="left", caption=f"{len(repeated.samples)} steps in chains")
    for size in ("batch size", *repeated.batch_sizes):
        out.add_column(str(size), justify="right")
    out.add_row("ratio", *(f"{ratio:.3f}" for ratio in repeated.ratios))
    return out


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}" if seconds >= 0.01 else f"{seconds * 1e3:.2f}"


def _error(error: HeldOutError) -> str:
    if error.mean is None or error.p95 is None or error.max is None:
        return "not measured"
    noise = "" if error.noise is None else f"; measured again they lay {error.noise:.1%} from themselves"
    return f"mean {error.mean:.1%}, p95 {error.p95:.1%}, max {error.max:.1%} of {error.num_points} points{noise}"
