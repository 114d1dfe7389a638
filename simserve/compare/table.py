"""What ``simserve compare`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simserve.report.compare_words import difference_rows, method_text, pair_name, ratio_rows, unanswered_text

WIDTH_IN_A_PIPE = 120
MAX_DIFFERENCES = 40
STYLES = {"better": "bold green", "worse": "bold red", "different": "bold"}


def print_comparison(document: Mapping[str, Any], console: Console) -> None:
    """Print what differs, then a table per pair of variants, then what the intervals are."""
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_IN_A_PIPE)
    for side in ("a", "b"):
        head = document[side]
        console.print(Text(f"{side.upper()}: {head['folder']}  ({head['scenario']}, seed {head['seed']})"))
    console.print(differences_table(document))
    for pair in document["pairs"]:
        console.print(ratio_table(pair))
        console.print(Text(method_text(pair), style="dim"))
        if unanswered_text(pair):
            console.print(Text(unanswered_text(pair), style="yellow"))
    for side, names in document["alone"].items():
        if names:
            console.print(Text(f"only in {side.upper()}, not compared: {', '.join(names)}", style="yellow"))
    for note in document["notes"]:
        console.print(Text(note, style="dim"))


def differences_table(document: Mapping[str, Any]) -> Table | Text:
    """Dotted keys with both values; those of one pair alone with its name."""
    rows = difference_rows(document)
    if not rows:
        return Text("\nNothing differs between the two runs' scenarios, profiles and versions.\n", style="bold")
    table = _table("What differs", "A", "B")
    for row in rows[:MAX_DIFFERENCES]:
        table.add_row(*map(Text, row))
    if len(rows) > MAX_DIFFERENCES:
        table.add_row(f"and {len(rows) - MAX_DIFFERENCES} more, in compare.json", "", "")
    return table


def ratio_table(pair: Mapping[str, Any]) -> Table:
    """One row per measure that either run has, then how the requests ended."""
    table = _table(pair_name(pair), "A", "B", "B/A", "95 % interval", "")
    for name, row in ratio_rows(pair).items():
        style = STYLES.get(str(pair["metrics"].get(name, {}).get("verdict")), "")
        table.add_row(*map(Text, row[:-1]), Text(row[-1], style=style))
    return table


def _table(title: str, *heads: str) -> Table:
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("")
    for i, head in enumerate(heads):
        last = i == len(heads) - 1 and not head
        table.add_column(head, justify="left" if last else "right", overflow="fold")
    return table
