"""A profile as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from altair.utils.schemapi import debug_mode

from simserve.report.calibration_content import CLOCKS, calibration_content
from simserve.report.page import emphasised, render_template, write_html
from simserve.step_time.chapters_schema import Chapters, chapters_beside, load_chapters
from simserve.step_time.profile_schema import Profile, Provenance, load_profile


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


def report_on_profile(name_or_path: str | Path, path: Path | None = None) -> Path:
    """Write the page of a shipped profile or of a profile file, with the chapters' tables that lie beside the file if
    they are of the same model and dtype; returns where, by default beside the profile as ``NAME.html`` (or here, for a
    shipped one). Raises ``ProfileError`` and ``OutputError``."""
    profile = load_profile(name_or_path)
    is_file = Path(name_or_path).is_file()
    beside = chapters_beside(Path(name_or_path)) if is_file else None
    chapters = load_chapters(beside) if beside is not None and beside.is_file() else None
    if chapters is not None and not _same_subject(chapters.provenance, profile.provenance):
        chapters = None
    path = path or (Path(name_or_path).with_suffix(".html") if is_file else Path(f"{profile.name}.html"))
    write_calibration_page(profile, path, chapters)
    return path


def _same_subject(one: Provenance, other: Provenance) -> bool:
    return (one.config_hash, one.dtype, one.device_name) == (other.config_hash, other.dtype, other.device_name)
