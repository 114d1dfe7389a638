"""A run as one self-contained HTML file: records -> Altair charts -> page.

Altair and Jinja are imported when a report is asked for, so that importing this package costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simserve.simulate import RunResult

__all__ = ["render_report"]


def render_report(result: RunResult, manifest: Mapping[str, Any], path: Path) -> None:
    """Write the report of a run to ``path``: one UTF-8 HTML file that opens offline and loads nothing.

    Its size is bounded (about 3 MB) however long the run: data are aggregated before they reach a chart.

    Raises:
        OutputError: the file cannot be written.
    """
    from simserve.report.page import write_page

    write_page(result, manifest, path)
