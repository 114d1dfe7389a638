"""A comparison as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from altair.utils.schemapi import debug_mode

from simserve.report.compare_content import comparison_content
from simserve.report.page import emphasised, render_template, write_html


def write_comparison_page(document: Mapping[str, Any], manifest: Mapping[str, Any], path: Path) -> None:
    """Write the page. Raises OutputError when the file cannot be written."""
    write_html(render_comparison_page(document, manifest), path)


def render_comparison_page(document: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    """The whole page as text; it depends on the document and the manifest alone."""
    with debug_mode(False):  # checking every chart against Vega-Lite's schema doubles the time; the tests do it
        content = comparison_content(document, manifest)
    names = [str(pair[f"variant_{side}"]) for pair in document["pairs"] for side in ("a", "b")]
    return render_template(
        "compare.html.j2",
        content.sections,
        content=content,
        kind="simserve comparison",
        headline=emphasised(content.headline, names),
    )
