"""What ``simserve knee`` prints: a line per variant, then what a reader must know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_IN_A_PIPE = 140


def print_knees(document: Mapping[str, Any], console: Console) -> None:
    """The table and the notes of a ``knee.json``."""
    widen(console)
    load = document["load"]
    table = Table(title=Text(f"{document['scenario']}: load is {load['key']}"), box=box.SIMPLE_HEAD)
    table.title_justify = "left"
    closed = load["base_rps"] is None
    unit, is_rate = load["unit"], load["base_rps"] == 1.0
    table.add_column("variant", no_wrap=True)
    throughput_head = [] if is_rate else ["throughput there, requests/s"]
    knee_head = f"knee of {document['metric']}, {unit}"
    for head in (f"saturation, {unit}", *throughput_head, knee_head, "batch knee", "backlog grows at"):
        table.add_column(Text(head), justify="right")
    for name, row in document["variants"].items():
        saturation, batch = row["saturation"], row["batch_knee"]
        throughput = saturation["plateau_rps"] if closed else scaled(saturation, load["base_rps"])
        knee = with_interval(row["knee"]) if row["knee"]["value"] is not None else "none"
        batch_text = "not measured" if batch is None else f"{batch['value']} ({batch['low']} to {batch['high']})"
        middle = [] if is_rate else [with_interval(throughput)]
        table.add_row(Text(name), with_interval(saturation), *middle, knee, batch_text, _checks(saturation["checks"]))
    console.print(table)
    print_notes(document, [row["step_time"] for row in document["variants"].values()], console)


def print_notes(document: Mapping[str, Any], step_times: list[Mapping[str, Any]], console: Console) -> None:
    """Notes, and a badge for step times that nobody measured."""
    for note in document["notes"]:
        console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
    guessed = dict.fromkeys(source["name"] for source in step_times if not source["calibrated"])
    for name in guessed:
        console.print(Text(f"not calibrated: step times by {name} were not measured", style="bold yellow"))


def widen(console: Console) -> None:
    """Room for the table where nobody's terminal sets it."""
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_IN_A_PIPE)


def with_interval(found: Mapping[str, Any]) -> str:
    """``1.23 (1.20 to 1.26)``; the value alone where it has no interval."""
    value, low, high = found["value"], found["low"], found["high"]
    if value is None:
        return "–"
    return f"{value:.4g}" if low is None or high is None else f"{value:.4g} ({low:.4g} to {high:.4g})"


def scaled(found: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """An interval in other units."""
    return {end: None if found[end] is None else factor * found[end] for end in ("value", "low", "high")}


def _checks(checks: list[Mapping[str, Any]]) -> str:
    """``0.95×: no, 1.05×: yes``."""
    return ", ".join(f"{check['at']:g}×: {'yes' if check['grows'] else 'no'}" for check in checks) or "–"
