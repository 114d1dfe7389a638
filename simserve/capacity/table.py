"""What ``simserve capacity`` prints: rows from the cheapest, then what a reader must know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simserve.knee.table import print_notes, widen, with_interval


def print_capacities(document: Mapping[str, Any], console: Console) -> None:
    """The table, reasons and notes of a ``capacity.json``."""
    widen(console)
    slos = ", ".join(slo["text"] for slo in document["slos"])
    table = Table(title=Text(f"{document['scenario']}: the largest load that holds {slos}"), box=box.SIMPLE_HEAD)
    table.title_justify = "left"
    keys = list(dict.fromkeys(key for row in document["rows"] for key in row["settings"]))
    heads = _heads(document)
    for key in ("variant", *(key.rpartition(".")[2] for key in keys)):
        table.add_column(Text(key), no_wrap=key == "variant")
    for head, name in heads.items():
        table.add_column(Text(head), justify="right", no_wrap=name == "limited_by")
    for row in document["rows"]:
        settings = [str(row["settings"].get(key, "")) for key in keys]
        table.add_row(Text(row["variant"]), *settings, *(_cell(row, name) for name in heads.values()))
    console.print(table)
    for row in document["rows"]:
        if row["capacity"]["value"] is None:
            where = ", ".join([row["variant"], *(f"{key} {value}" for key, value in row["settings"].items())])
            console.print(Text(f"no capacity: {where}: {row['reason']}", style="yellow"), soft_wrap=True)
    print_notes(document, [row["step_time"] for row in document["rows"]], console)


def _heads(document: Mapping[str, Any]) -> dict[str, str]:
    """Titles of the columns and the keys behind them; only what was asked for."""
    load = document["load"]
    heads = {"capacity, requests/s": "capacity"}
    if load["base_rps"] != 1.0:
        heads |= {f"load, {load['unit']}": "load"}
    heads |= {"limited by": "limited_by", "output tokens/s": "output_tokens_per_s", "GPUs each": "gpus_per_replica"}
    if document["target_rps"] is not None:
        heads |= {f"replicas for {document['target_rps']:g} requests/s": "replicas"}
    if document["price_per_gpu_hour"] is not None:
        heads |= {
            "cost/million output tokens": "cost_per_million_output_tokens",
            "cost/million tokens": "cost_per_million_tokens",
            "cost/hour": "cost_per_hour",
        }
    return heads


def _cell(row: Mapping[str, Any], name: str) -> Text:
    value = row[name]
    if value is None:
        return Text("–")
    if name == "replicas":
        same = value["low"] == value["high"]
        return Text(f"{value['value']}" if same else f"{value['value']} ({value['low']} to {value['high']})")
    if isinstance(value, Mapping):
        return Text(with_interval(value))
    return Text(f"{value:.4g}" if isinstance(value, float) else str(value))
