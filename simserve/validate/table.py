"""What ``simserve validate`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simserve.report.validate_words import error_table as head_and_rows
from simserve.report.validate_words import steps_text, summary_text
from simserve.validate.score import flat

WIDTH_IN_A_PIPE = 120
STYLES = {
    "the same": "green",
    "within noise": "green",
    "close": "green",
    "fair": "yellow",
    "off": "bold yellow",
    "far off": "bold red",
    "over the limit": "bold red",
}


def print_validation(document: Mapping[str, Any], console: Console) -> None:
    """Print how many steps are the same, the table of errors, what was known beforehand and every note."""
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_IN_A_PIPE)
    engine = document["engine"]
    runs = f"{engine['num_runs']} runs" if engine["num_runs"] > 1 else ", ".join(engine["runs"])
    console.print(
        Text(f"{document['scenario']} against {engine['name']} ({engine['kind']}: {runs})", style="bold"),
        soft_wrap=True,
    )
    steps = document["steps"]
    if steps is not None:
        same = steps["compared"] == steps["identical"]
        console.print(Text(steps_text(steps), style="green" if same else "bold yellow"))
    console.print(error_table(document))
    console.print(Text(summary_text(document), style="bold"))
    console.print(Text("known beforehand", style="bold"))
    for text in document["known_beforehand"]:
        console.print(Text(f"  {text}"), soft_wrap=True)
    for note in document["notes"]:
        console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)


def error_table(document: Mapping[str, Any]) -> Table:
    """A row per figure that either side has: measured, predicted, error, noise, and the error in words."""
    limit = document["limit"]["max_error"] if document["limit"] else None
    (_, *heads, _), rows = head_and_rows(flat(document["metrics"]), limit)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for head in heads:
        table.add_column(head, justify="right")
    table.add_column("")
    for row in rows:
        *cells, words = row
        table.add_row(*map(Text, cells), Text(words, style=STYLES.get(words, "")))
    return table
