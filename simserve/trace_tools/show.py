"""What ``simserve trace info`` prints: a line per fact, a table of lengths, three small pictures, and every oddity."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simserve.trace_tools.picture import columns, log_bins, narrowed
from simserve.trace_tools.profile import PERCENTILES, Profile
from simserve.workload.trace import Trace

WIDTH_IN_A_PIPE = 120
PICTURE_WIDTH = 60
CAN_BE_LEFT_OUT = ("p25", "p75", "p1", "sum", "p95", "min", "p90")
_LABELS = 18


def show_profile(name: str, found: Profile, trace: Trace, console: Console) -> None:
    """Print the profile of a trace."""
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_IN_A_PIPE)
    left_out = found["num_rows"] - found["num_requests"]
    rows = f" of {found['num_rows']:,} rows" if left_out else ""
    noun = "request" if found["num_requests"] == 1 else "requests"
    title = f"{name}: {found['num_requests']:,} {noun}{rows}, read as {found['format']}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(_facts(found))
    console.print(_lengths(found, console))
    width = max(10, min(PICTURE_WIDTH, console.width - _LABELS - 2))
    for line in _pictures(found, trace, width):
        console.print(Text(line), soft_wrap=True)
    for note in found["notes"]:
        console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)


def duration(seconds: float) -> str:
    """A time as people say it, three digits of it: 850 ms, 59.2 s, 12.5 min, 3.25 h, 7.5 days."""
    for limit, unit, size in ((1.0, "ms", 1e-3), (120.0, "s", 1.0), (7_200.0, "min", 60.0), (172_800.0, "h", 3_600.0)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:,.4g} days"


def _facts(found: Profile) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    for label, text in (*_time_facts(found["arrivals"]), *_other_facts(found)):
        table.add_row(label, Text(text))
    return table


def _time_facts(arrivals: Profile | None) -> list[tuple[str, str]]:
    if arrivals is None:
        return [("times", "none: an order alone, for workload.concurrency")]
    if not arrivals["span_s"]:
        return [("times", "all at once")]
    facts = [
        ("span", f"{duration(arrivals['span_s'])} ({arrivals['span_s']:,.3f} s)"),
        ("rate", f"{arrivals['mean_rate_rps']:.4g} requests/s on average"),
        ("busiest window", f"{arrivals['peak_rate_rps']:.4g} requests/s for {duration(arrivals['window_s'])}"),
        ("CV of gaps", f"{arrivals['gap_cv']:.3g} (Poisson: 1)"),
    ]
    if arrivals["count_dispersion"] is not None:
        windows = f"{len(arrivals['counts'])} windows"
        facts.append(("counts", f"variance {arrivals['count_dispersion']:.3g} × mean in {windows} (Poisson: 1)"))
    if sizes := arrivals["dispersion"]:
        told = [f"{each['variance_over_mean']:.3g} in {duration(each['window_s'])}" for each in sizes]
        facts.append(("", f"by size of the window: {', '.join(told)}"))
    facts.append(("longest gap", duration(arrivals["longest_gap_s"])))
    if share := arrivals["share_at_the_time_of_another"]:
        facts.append(("same time", f"{100 * share:.3g} % arrive at the very time of the one before"))
    return facts


def _other_facts(found: Profile) -> list[tuple[str, str]]:
    facts = []
    if (correlation := found["prompt_output_rank_correlation"]) is not None:
        facts.append(("long with long", f"rank correlation of prompt and output {correlation:+.2f}"))
    if declared := found["declared_max_output_tokens"]:
        facts.append(("declared maxima", f"{declared['num_requests']:,} requests, at most {declared['max']:,} tokens"))
    if len(found["priorities"]) > 1 or "0" not in found["priorities"]:
        shown = [f"{value}: {count:,}" for value, count in found["priorities"].items()]
        facts.append(("priorities", ", ".join(shown[:8]) + (f" and {len(shown) - 8:,} more" if shown[8:] else "")))
    if tenants := found["tenants"]:
        most = sorted(tenants.items(), key=lambda item: -item[1])
        shown = [f"{name}: {count:,}" for name, count in most[:8]]
        facts.append(("tenants", ", ".join(shown) + (f" and {len(most) - 8:,} more" if most[8:] else "")))
    if sessions := found["sessions"]:
        turns = f"{sessions['mean_requests']:.3g} requests each, at most {sessions['max_requests']:,}"
        facts.append(("sessions", f"{sessions['num_sessions']:,}, {turns}"))
        if sessions["num_waiting"]:
            waiting = sessions["num_waiting"]
            who = "1 request waits" if waiting == 1 else f"{waiting:,} requests wait"
            facts.append(
                ("", f"{who} for the answer before {'it' if waiting == 1 else 'them'}: times as if it took none")
            )
    if prefix := found["prefix"]:
        size = prefix["block_tokens"]
        units = "known tokens" if size == 1 else f"whole blocks of {size:,} tokens"
        blocks = f"{prefix['num_distinct_blocks']:,} distinct of {prefix['num_blocks']:,} {units}"
        rate = f"{100 * prefix['hit_rate_bound']:.1f} % of the prompt tokens"
        facts.append(("prefix hits", f"at most {rate} ({blocks})"))
    return facts


def _lengths(found: Profile, console: Console) -> Table:
    """Where a terminal is narrow, columns are left out; no figure is ever cut."""
    heads, spare = ["mean", "min", *(f"p{q}" for q in PERCENTILES), "max", "sum"], list(CAN_BE_LEFT_OUT)
    while (width := _width(table := _table(found, heads), console)) > console.width and spare:
        heads.remove(spare.pop(0))
    console.width = max(console.width, width)
    return table


def _width(table: Table, console: Console) -> int:
    """What the table takes uncut, however narrow the console is."""
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum


def _table(found: Profile, heads: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("tokens", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for label, key in (("prompt", "num_prompt_tokens"), ("output", "num_output_tokens")):
        numbers = found[key]
        cells = [f"{numbers[head]:,.1f}" if head == "mean" else f"{numbers[head]:,.0f}" for head in heads]
        table.add_row(label, *cells)
    return table


def _pictures(found: Profile, trace: Trace, width: int) -> list[str]:
    lines = []
    arrivals = found["arrivals"]
    if arrivals is not None and arrivals["span_s"]:
        counts = narrowed(arrivals["counts"], width)
        lines.append(f"{'arrivals':<{_LABELS}}{columns(counts)}")
        lines.append(f"{'':<{_LABELS}}{_ends('0 s', duration(arrivals['span_s']), len(counts))}")
    for label, tokens in (("prompt tokens", trace.num_prompt_tokens), ("output tokens", trace.num_output_tokens)):
        binned, low, high = log_bins(tokens, width // 2)
        if low < high:
            lines.append(f"{label:<{_LABELS}}{columns(binned.tolist())}")
            lines.append(f"{'  (log scale)':<{_LABELS}}{_ends(f'{low:,}', f'{high:,}', len(binned))}")
    return lines


def _ends(left: str, right: str, width: int) -> str:
    return left + right.rjust(max(width - len(left), len(right) + 1))
