"""What rounding does to a model, or what a draft is worth, as one self-contained HTML page beside its file."""

from __future__ import annotations

from pathlib import Path

from altair.utils.schemapi import debug_mode

from simserve.report.agreement_content import agreement_content
from simserve.report.page import emphasised, render_template, write_html
from simserve.report.quantization_content import quantization_content
from simserve.step_time.quality_schema import DraftAgreement, Quantization, load_agreement, load_quantization


def report_on_quantization(path: Path) -> Path:
    """Write the page of what ``simserve quantize`` wrote to ``path``; returns where, beside it as ``NAME.html``.

    Raises ``ProfileError`` and ``OutputError``."""
    page = path.with_suffix(".html")
    write_html(render_quality_page(load_quantization(path)), page)
    return page


def report_on_agreement(path: Path) -> Path:
    """The same for ``simserve agreement``."""
    page = path.with_suffix(".html")
    write_html(render_quality_page(load_agreement(path)), page)
    return page


def render_quality_page(document: Quantization | DraftAgreement) -> str:
    """The whole page as text; it depends on the document alone."""
    with debug_mode(False):  # checking every chart against Vega-Lite's schema doubles the time; the tests do it
        if isinstance(document, Quantization):
            content, names = quantization_content(document), [row.scheme for row in document.rows]
            kind = "simserve quantization"
        else:
            content, names = (
                agreement_content(document),
                [Path(each).name for each in (document.draft, document.target)],
            )
            kind = "simserve draft agreement"
    headline = emphasised(content.headline, names)
    return render_template("quality.html.j2", content.sections, content=content, kind=kind, headline=headline)
