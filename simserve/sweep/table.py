"""What a finished sweep prints: a line per curve, or per point where nothing is offered more and more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simserve.sweep.document import THROUGHPUT

MAX_ROWS = 40
WIDTH_IN_A_PIPE = 120


def print_sweep(document: Mapping[str, Any], console: Console) -> None:
    """The table, and the notes under it."""
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_IN_A_PIPE)
    console.print(_curves(document) if document["curves"] else _points(document))
    for note in document["notes"]:
        console.print(Text(f"note: {note}", style="dim"))


def _table(document: Mapping[str, Any], settings: list[str]) -> Table:
    num = document["replications"]
    repeated = f"{num} replications" if num > 1 else "one replication"
    title = Text(f"{document['scenario']}: {document['model']}, {len(document['points'])} points, {repeated}")
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("variant", overflow="fold")
    for key in settings:
        table.add_column(Text(key.rpartition(".")[2]), justify="right")
    return table


def _curves(document: Mapping[str, Any]) -> Table:
    load = document["load_axis"]
    others = [axis["key"] for axis in document["axes"] if axis["key"] != load]
    table = _table(document, others)
    unit = load.rpartition(".")[2]
    for name in (f"saturated from, {unit}", f"knee, {unit}", "best output tokens/s", "on the front"):
        table.add_column(name, justify="right")
    for curve in document["curves"][:MAX_ROWS]:
        points = [document["points"][i] for i in curve["points"]]
        best = max((point["metrics"][THROUGHPUT] for point in points), key=lambda each: each["value"] or 0.0)
        table.add_row(
            Text(curve["variant"]),
            *(Text(_value(curve["settings"][key])) for key in others),
            _from(curve, points),
            _interval(curve["knee"]) if curve["knee"] else "–",
            _interval(best),
            str(sum(point["pareto"] for point in points)),
        )
    return _with_rest(table, len(document["curves"]))


def _points(document: Mapping[str, Any]) -> Table:
    keys = [axis["key"] for axis in document["axes"]]
    table = _table(document, keys)
    for name in ("output tokens/s", f"{document['metric']}", "backlog", "unanswered", "on the front"):
        table.add_column(name, justify="right")
    for point in document["points"][:MAX_ROWS]:
        table.add_row(
            Text(point["variant"]),
            *(Text(_value(point["settings"][key])) for key in keys),
            _interval(point["metrics"][THROUGHPUT]),
            "–" if point["grows"] else _interval(point["metrics"][document["metric"]]),
            _backlog(point),
            f"{point['metrics']['unanswered_share']['value'] or 0:.0%}" if point["leaves_unanswered"] else "",
            "yes" if point["pareto"] else "",
        )
    return _with_rest(table, len(document["points"]))


def _from(curve: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> str:
    """The load from which the backlog grows."""
    if curve["saturated_from"] is None and not all(point["growth_tested"] for point in points):
        return "not tested"
    return _number(curve["saturated_from"])


def _backlog(point: Mapping[str, Any]) -> str:
    if not point["growth_tested"]:
        return "not tested"
    return "grows" if point["grows"] else "does not grow"


def _with_rest(table: Table, num_rows: int) -> Table:
    if num_rows > MAX_ROWS:
        table.caption = f"and {num_rows - MAX_ROWS} more, on the page and in sweep.json"
        table.caption_justify = "left"
    return table


def _value(value: object) -> str:
    return _number(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _interval(interval: Mapping[str, Any]) -> str:
    """A value, and half the width of its interval where it has one."""
    if interval["value"] is None or interval["low"] is None:
        return _number(interval["value"])
    return f"{_number(interval['value'])} ± {_number((interval['high'] - interval['low']) / 2)}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
