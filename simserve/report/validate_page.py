"""A validation as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from altair.utils.schemapi import debug_mode

from simserve.report.page import emphasised, render_template, write_html
from simserve.report.validate_content import validation_content


def write_validation_page(
    document: Mapping[str, Any], curves: Mapping[str, Any], manifest: Mapping[str, Any], path: Path
) -> None:
    """Write the page. Raises OutputError when the file cannot be written."""
    write_html(render_validation_page(document, curves, manifest), path)


def render_validation_page(document: Mapping[str, Any], curves: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    """The whole page as text; it depends on its arguments alone."""
    with debug_mode(False):  # checking every chart against Vega-Lite's schema doubles the time; the tests do it
        content = validation_content(document, curves, manifest)
    return render_template(
        "validate.html.j2",
        content.sections,
        content=content,
        kind="simserve validation",
        headline=emphasised(content.headline, [content.name]),
    )
