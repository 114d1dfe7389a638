"""A profile as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from altair.utils.schemapi import debug_mode

from simserve.report.calibration_content import CLOCKS, calibration_content
from simserve.report.page import emphasised, render_template, write_html
from simserve.step_time.chapters_schema import Chapters
from simserve.step_time.profile_schema import Profile


def write_calibration_page(profile: Profile, path: Path, chapters: Chapters | None = None) -> None:
    """Write the page of ``profile``. Raises OutputError when the file cannot be written."""
    write_html(render_calibration_page(profile, chapters), path)


def render_calibration_page(profile: Profile, chapters: Chapters | None = None) -> str:
    """The whole page as text; it depends on the profile alone, and on the chapters' tables where there are some."""
    with debug_mode(False):  # checking every chart against Vega-Lite's schema doubles the time; the tests do it
        content = calibration_content(profile, chapters)
    return render_template(
        "calibration.html.j2",
        content.sections,
        content=content,
        kind="simserve calibration",
        clock=CLOCKS[profile.provenance.clock],
        headline=emphasised(content.headline, [profile.provenance.model]),
    )
