"""What a run prints: variants side by side with their ratios to the first, and a progress bar while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from simserve.fairness import has_limits

if TYPE_CHECKING:
    from simserve.simulate import RunResult

Summary = dict[str, Any]
OnProgress = Callable[[str, int, int], None]
WIDTH_IN_A_PIPE = 120
MAX_TENANTS = 8  # shown; summary.json has all
DIFFERENT = 1.01  # times as much, for a row that is only there for variants that differ in it


class Row(NamedTuple):
    """One line of the table. ``path`` leads to the number in the summary; ``unit`` says how it is printed."""

    label: str
    path: str
    unit: str
    has_ratio: bool = False
    only_if_any: bool = False  # left out when it is zero or null in every variant
    only_if_differs: bool = False  # left out when it is the same, to a percent, in every variant


ROWS = (
    Row("finished requests", "num_finished", "count"),
    Row("rejected requests", "num_rejected", "count", only_if_any=True),
    Row("cancelled requests", "num_cancelled", "count", only_if_any=True),
    Row("timed-out requests", "num_timed_out", "count", only_if_any=True),
    Row("answers 429", "num_turned_away", "count", only_if_any=True),
    Row("output tokens", "output_tokens", "count"),
    Row("output tokens/s", "output_tokens_per_s", "number", has_ratio=True),
    Row("requests/s", "requests_per_s", "number", has_ratio=True),
    Row("goodput, requests/s", "goodput_rps", "number", has_ratio=True),
    Row("TTFT mean, ms", "ttft_s.mean", "ms", has_ratio=True),
    Row("TTFT p99, ms", "ttft_s.p99", "ms", has_ratio=True),
    Row("TPOT mean, ms", "tpot_s.mean", "ms", has_ratio=True),
    Row("ITL p99, ms", "itl_s.p99", "ms", has_ratio=True),
    Row("E2E mean, ms", "e2e_s.mean", "ms", has_ratio=True),
    Row("E2E p99, ms", "e2e_s.p99", "ms", has_ratio=True),
    Row("queue time mean, ms", "queue_time_s.mean", "ms", has_ratio=True),
    Row("mean batch size", "mean_batch_size", "number"),
    Row("peak running", "peak_running", "count"),
    Row("steps", "num_steps", "count", has_ratio=True),
    Row("computed tokens", "computed_tokens", "count", has_ratio=True, only_if_differs=True),
    Row("multiply-adds, 10⁹", "model_macs", "billions", has_ratio=True, only_if_differs=True),
    Row("tokens per pass", "speculation.tokens_per_pass", "number", only_if_any=True),
    Row("drafts accepted", "speculation.acceptance_rate", "share", only_if_any=True),
    Row("busy time", "busy_share", "share"),
    Row("wasted slot-time", "wasted_slot_share", "share", only_if_any=True),
    Row("padding of prompts", "prompt_padding_share", "share", only_if_any=True),
    Row("preemptions", "num_preemptions", "count", only_if_any=True),
    Row("recomputed tokens", "recomputed_tokens", "count", only_if_any=True),
    Row("tokens for nobody", "abandoned_tokens", "count", only_if_any=True),
    Row("KV bytes per token", "simulated_model.kv_bytes_per_token", "count", only_if_differs=True),
    Row("weights, 10⁹ bytes", "simulated_model.weight_bytes", "billions", only_if_differs=True),
    Row("cache capacity, tokens", "kv_cache.capacity_tokens", "count", has_ratio=True, only_if_differs=True),
    Row("cache used, mean", "kv_cache.mean_used", "share"),
    Row("cache used, peak", "kv_cache.peak_used", "share"),
    Row("prefix hits, of looked-up tokens", "kv_cache.prefix_hit_rate", "share", only_if_any=True),
    Row("  with an infinite cache", "kv_cache.prefix_hit_bound", "share", only_if_any=True),
    Row("  evicted and computed again", "kv_cache.prefix_evicted_tokens", "count", only_if_any=True),
    Row("evicted prefix blocks", "kv_cache.prefix_evictions", "count", only_if_any=True),
    Row("  reserved, unused", "kv_cache.mean_reserved_unused", "share", only_if_any=True),
    Row("  internal waste", "kv_cache.mean_internal_fragmentation", "share", only_if_any=True),
    Row("  external waste", "kv_cache.mean_external_fragmentation", "share", only_if_any=True),
)


TENANT_ROWS = (
    Row("finished requests", "num_finished", "count"),
    Row("output tokens/s", "output_tokens_per_s", "number", has_ratio=True),
    Row("TTFT p99, ms", "ttft_s.p99", "ms", has_ratio=True),
    Row("E2E p99, ms", "e2e_s.p99", "ms", has_ratio=True),
    Row("requests within limits", "slo_attainment", "share"),
)
FAIRNESS_ROWS = (
    Row("Jain: tokens per second of E2E", "speed", "number"),
    Row("Jain: requests within limits", "slo_attainment", "number"),
    Row("Jain: tokens got of those asked for", "served_share", "number"),
)


def print_result(result: RunResult, console: Console) -> None:
    """Print notes of the workload, the table, and a badge for step times that were not measured."""
    for note in result.workload.notes:
        console.print(Text(f"note: {note}", style="yellow"))
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_IN_A_PIPE)
    console.print(comparison(result))
    if result.workload.table.tenants is not None:
        console.print(tenants_table(result))
    for badge in badges(result):
        console.print(Text(badge, style="bold yellow"))


def comparison(result: RunResult) -> Table:
    """The table: a column per variant; later ones show in brackets their ratio to the first."""
    first = next(iter(result.variants.values())).scenario
    title = Text(f"{result.scenario.name}: {first.model}, {len(result.workload.table)} requests")
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("")
    for name in result.variants:
        table.add_column(Text(name), justify="right", overflow="fold")
    summaries = [{**variant.summary, "simulated_model": variant.model.entry()} for variant in result.variants.values()]
    is_limited = _is_limited(result)
    for row in ROWS:
        values = [_of_row(summary, row) for summary in summaries]
        if row.only_if_differs and not _differ(values):
            continue
        if (row.only_if_any and not any(values)) or (row.path == "goodput_rps" and not is_limited):
            continue
        table.add_row(row.label, *(_cell(row, value, None if i == 0 else values[0]) for i, value in enumerate(values)))
    return table


def _is_limited(result: RunResult) -> bool:
    """Whether anything is asked of anybody, in any variant."""
    tenants = result.workload.table.tenants
    return any(has_limits(tenants, variant.scenario.slo) for variant in result.variants.values())


def tenants_table(result: RunResult) -> Table:
    """What each tenant got, and how equal that is: a column per variant, as in ``comparison``; of many tenants
    for those who send most; limits where there are any."""
    sent = {
        name: each["num_requests"] for name, each in next(iter(result.variants.values())).summary["tenants"].items()
    }
    most = sorted(sent, key=lambda name: -sent[name])[:MAX_TENANTS]
    of_all = f"the {MAX_TENANTS} of {len(sent):,} that send most; " if len(sent) > MAX_TENANTS else ""
    title = f"By tenant ({of_all}Jain: 1 is equal)"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("")
    for name in result.variants:
        table.add_column(Text(name), justify="right", overflow="fold")
    summaries = [variant.summary for variant in result.variants.values()]
    rows, fairness_rows = (
        [row for row in every if row.path != "slo_attainment" or _is_limited(result)]
        for every in (TENANT_ROWS, FAIRNESS_ROWS)
    )
    for tenant in (name for name in sent if name in most):
        for row in rows:
            values = [look_up(summary["tenants"][tenant], row.path) for summary in summaries]
            cells = (_cell(row, value, None if i == 0 else values[0]) for i, value in enumerate(values))
            table.add_row(Text(f"{tenant}: {row.label}"), *cells)
    for row in fairness_rows:
        table.add_row(row.label, *(_cell(row, look_up(summary["fairness"], row.path), None) for summary in summaries))
    return table


def badges(result: RunResult) -> list[str]:
    """One line for each thing that makes the figures less than measured."""
    estimated: dict[str, list[str]] = {}
    for name, variant in result.variants.items():
        if not variant.step_time.source.calibrated:
            estimated.setdefault(variant.step_time.source.note, []).append(name)
    lines = []
    for note, names in estimated.items():
        sources = dict.fromkeys(result.variants[name].step_time.source.name for name in names)
        lines.append(f"uncalibrated: {_of(names, result)} step times come from {', '.join(sources)}: {note}")
    changes: dict[str, list[str]] = {}
    for name, variant in result.variants.items():
        for change in variant.model.changes():
            changes.setdefault(change, []).append(name)
    lines += [f"changed model: {', '.join(names)}: {change}" for change, names in changes.items()]
    for name, variant in result.variants.items():
        share = variant.summary["extrapolated_step_share"]
        if share > 0:
            measured = variant.step_time.source.name
            lines.append(f"extrapolated: {share:.1%} of the steps of {name} lie outside what {measured} measured")
    return lines


def _of(names: list[str], result: RunResult) -> str:
    return "all" if len(names) == len(result.variants) else f"{', '.join(names)}:"


def _of_row(summary: Summary, row: Row) -> float | None:
    """A row's number; nothing of what a prefix cache did where nobody looked anything up in one."""
    is_sought = not row.path.startswith("kv_cache.prefix_") or look_up(summary, "kv_cache.prefix_looked_up_tokens")
    return look_up(summary, row.path) if is_sought else None


def look_up(summary: Summary, path: str) -> float | None:
    """The number at a dotted path, None where the run has nothing of the kind."""
    value: Any = summary
    for key in path.split("."):
        value = value.get(key) if value is not None else None
    return None if value is None else float(value)


@contextmanager
def progress_bar(console: Console) -> Iterator[OnProgress | None]:
    """A callback that shows which variant runs and how many of its requests are done; nothing without a terminal."""
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}
        shown: dict[str, int] = {}

        def on_progress(variant: str, done: int, total: int) -> None:
            if variant not in tasks:
                tasks[variant], shown[variant] = progress.add_task(escape(variant), total=total), 0
            if done == total or done - shown[variant] > total // 500:  # a redraw per step would cost more than the step
                progress.update(tasks[variant], completed=done)
                shown[variant] = done

        yield on_progress


def _cell(row: Row, value: float | None, first: float | None) -> Text:
    text = Text(_printed(value, row.unit))
    if row.has_ratio and value is not None and first:
        text.append(f" ({_ratio(value / first)}×)", style="dim")
    return text


def _differ(values: Sequence[float | None]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and max(known) > DIFFERENT * min(known)


def _ratio(ratio: float) -> str:
    """Two decimals, or two digits where those would say nothing."""
    return f"{ratio:.2f}" if ratio >= 0.1 or ratio == 0 else f"{ratio:.2g}"


def _printed(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "count":
        return f"{value:,.0f}"
    if unit == "share":
        return f"{value:.1%}"
    if unit == "billions":
        return _three_digits(value / 1e9)
    return _three_digits(value * 1000 if unit == "ms" else value)


def _three_digits(value: float) -> str:
    """At least three significant digits, thousands separated, no exponent."""
    magnitude = abs(value)
    decimals = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2 if magnitude >= 1 else 3
    return f"{value:,.{decimals}f}"
