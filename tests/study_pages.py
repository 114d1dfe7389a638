"""Reading a study's page back: its tables, its charts as the script fills them, and numbers out of words."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import altair as alt
import jsonschema

from tests.test_report_page import charts_of

UNITS = {"": 1.0, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "%": 0.01}
NUMBER = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)\s*(µs|ms|min|s|h|%)?(?![\w])")


def filled(value: Any, chosen: dict[str, dict[str, Any]]) -> Any:
    """A chart with the places of controls filled, as page.js does it."""
    if isinstance(value, dict):
        return {key: filled(part, chosen) for key, part in value.items()}
    if isinstance(value, list):
        return [filled(part, chosen) for part in value]
    if isinstance(value, str) and value.startswith("$"):
        name, _, key = value[1:].partition(".")
        return chosen[name][key]
    return value


def sections_of(html: str) -> dict[str, list[str]]:
    """The ids of the charts in each section."""
    parts = re.findall(r'<section id="([\w-]+)"(.*?)</section>', html, re.S)
    return {name: re.findall(r'data-chart="([^"]+)"', text) for name, text in parts}


def every_chart(html: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each chart as it is first drawn, then under every other choice of each control of its section."""
    charts = charts_of(html)
    for section, names in sections_of(html).items():
        controls = charts.get("controls", {}).get(section, {})
        first = {name: options[0] for name, options in controls.items()}
        others = [first | {name: option} for name, options in controls.items() for option in options[1:]]
        for name in names:
            spec = charts["specs"][name]
            yield name, filled(spec, first)
            yield from (
                (name, filled(spec, chosen)) for chosen in others if filled(spec, chosen) != filled(spec, first)
            )


@cache
def _schema() -> jsonschema.Draft7Validator:
    """Vega-Lite's own schema as Altair ships it; Altair's check of the same takes four times as long."""
    schema = sys.modules[alt.VegaLiteSchema.__module__].load_schema()
    return jsonschema.Draft7Validator({**schema, "$ref": "#/definitions/TopLevelSpec"})


def check_chart(name: str, spec: dict[str, Any]) -> None:
    """The chart holds to the schema and has no open place left."""
    assert '"$' not in json.dumps(spec), name
    assert _schema().is_valid(spec), name


def table_rows(html: str, name: str) -> list[dict[str, Any]]:
    """The rows of a table that charts share."""
    columns = charts_of(html)["tables"][name]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def fields_of(value: Any) -> set[str]:
    """Every field that a chart names."""
    if isinstance(value, list):
        return set().union(*map(fields_of, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    mine = {value["field"]} if isinstance(value.get("field"), str) else set()
    return mine.union(*(fields_of(part) for key, part in value.items() if key != "values"))


def numbers_in(text: str) -> list[float]:
    """The numbers of a text with their units made seconds and shares."""
    clean = text.replace("\u00a0", " ")
    return [float(digits.replace(",", "")) * UNITS[unit] for digits, unit in NUMBER.findall(clean)]


def text_of(html: str) -> str:
    """The page's text without scripts, styles and tags, blanks made one."""
    bare = re.sub(r"<(script|style).*?</\1>", "", html, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", bare)).replace("\u00a0", " ")


def head_of(html: str) -> str:
    """What stands above the first section."""
    return html[html.index("<body>") : html.index("<main")]
