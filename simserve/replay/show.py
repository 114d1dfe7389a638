"""What ``simserve replay`` prints: a table of what was measured, what went wrong, and what a reader should know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from simserve.replay.load import OnProgress

WIDTH_IN_A_PIPE = 120
MOST_FAULTS = 12
_COUNTS = ("finished", "rejected", "timed_out", "failed", "cancelled", "unsent")
_LATENCIES = {
    "TTFT": "ttft_s",
    "TPOT": "tpot_s",
    "ITL": "itl_s",
    "E2E": "e2e_s",
    "lateness of sending": "lateness_s",
}
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


def print_replay(document: Mapping[str, Any], console: Console) -> None:
    """Print the tables, then each note and warning on a line of its own."""
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_IN_A_PIPE)
    sent_to = f"{document['url']} ({document['model']})"
    console.print(Text(f"{document['name']} on {sent_to}: {document['num_requests']:,} requests", style="bold"))
    console.print(_rates(document))
    console.print(_latencies(document))
    if document["faults"]:
        console.print(Text("what went wrong, by attempt", style="bold"))
        console.print(_faults(document))
    for note in document["notes"]:
        console.print(Text(f"note: {note}", style="yellow"))
    for warning in document["warnings"]:
        console.print(Text(f"warning: {warning}", style="bold yellow"))


@contextmanager
def progress_bar(console: Console, total: int) -> Iterator[OnProgress | None]:
    """A bar of the requests that have ended, with how many were sent; nothing without a terminal."""
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("ended"))
    # No refreshing thread: it would make this client late at times of its own choosing.
    with Progress(*columns, TimeElapsedColumn(), console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("replaying", total=total)

        def on_progress(num_sent: int, num_ended: int) -> None:
            progress.update(task, completed=num_ended, description=f"{num_sent:,} sent", refresh=True)

        yield on_progress


def _rates(document: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for status in _COUNTS:
        if document[f"num_{status}"] or status == "finished":
            table.add_row(f"{status.replace('_', ' ')} requests", f"{document[f'num_{status}']:,}")
    if document["num_turned_away"]:
        table.add_row("answers 429", f"{document['num_turned_away']:,}")
    if document["num_attempts"] > document["num_requests"]:
        table.add_row("attempts", f"{document['num_attempts']:,}")
    if document["num_stale_connections"]:
        table.add_row("kept connections found closed", f"{document['num_stale_connections']:,}")
    table.add_row("offered requests/s", _number(document["offered_rps"]))
    table.add_row("requests/s", _number(document["requests_per_s"]))
    if any(limit is not None for limit in document["slo"].values()):
        table.add_row("goodput, requests/s", _number(document["goodput_rps"]))
    table.add_row("output tokens/s", _number(document["output_tokens_per_s"]))
    table.add_row("total tokens/s", _number(document["total_tokens_per_s"]))
    table.add_row("makespan, s", _number(document["makespan_s"]))
    outputs, prompts = document["output_lengths"], document["prompt_tokens"]
    table.add_row("output tokens, came of asked", f"{outputs['counted']:,} of {outputs['asked']:,}")
    if prompts["num_counted"]:
        table.add_row("prompt tokens, counted of asked", f"{prompts['counted']:,} of {prompts['asked']:,}")
    return table


def _latencies(document: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("ms")
    for statistic in _STATISTICS:
        table.add_column(statistic, justify="right")
    for label, key in _LATENCIES.items():
        values = (document[key][statistic] for statistic in _STATISTICS)
        table.add_row(label, *(_number(None if value is None else value * 1000) for value in values))
    return table


def _faults(document: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("times", justify="right")
    faults = sorted(document["faults"].items(), key=lambda pair: -pair[1])
    for words, times in faults[:MOST_FAULTS]:
        table.add_row(Text(words), f"{times:,}")
    if len(faults) > MOST_FAULTS:
        table.add_row(f"and {len(faults) - MOST_FAULTS} more kinds, in replay.json", "")
    return table


def _number(value: float | None) -> str:
    """At least three significant digits, thousands separated, no exponent."""
    if value is None:
        return "–"
    magnitude = abs(value)
    decimals = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2 if magnitude >= 1 else 3
    return f"{value:,.{decimals}f}"
