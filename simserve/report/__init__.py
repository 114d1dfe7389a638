"""A run, a calibration or a study of many runs as one self-contained HTML file: data -> Altair charts -> page.

Altair and Jinja are imported when a report is asked for, so that importing this package costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simserve.simulate import RunResult
    from simserve.step_time.chapters_schema import Chapters
    from simserve.step_time.profile_schema import Profile

__all__ = [
    "render_calibration",
    "render_capacity",
    "render_knee",
    "render_report",
    "render_sweep",
    "render_validation",
    "report_on_agreement",
    "report_on_profile",
    "report_on_quantization",
]


def render_report(result: RunResult, manifest: Mapping[str, Any], path: Path) -> None:
    """Write the report of a run to ``path``: one UTF-8 HTML file that opens offline and loads nothing.

    Its size is bounded (about 3 MB) however long the run: data are aggregated before they reach a chart.

    Raises:
        OutputError: the file cannot be written.
    """
    from simserve.report.page import write_page

    write_page(result, manifest, path)


def render_comparison(document: Mapping[str, Any], manifest: Mapping[str, Any], path: Path) -> None:
    """Write the page of a comparison (the document ``compare.json``, the comparison's manifest) to ``path``: one HTML
    file that opens offline and loads nothing, under 4 MB however many requests the runs had.

    Raises:
        OutputError: the file cannot be written.
    """
    from simserve.report.compare_page import write_comparison_page

    write_comparison_page(document, manifest, path)


def render_calibration(profile: Profile, path: Path, chapters: Chapters | None = None) -> None:
    """Write the report of a profile to ``path``: what was measured on what, how noisy it was and how far off it may be,
    as one HTML file that opens offline and loads nothing. ``chapters`` are the tables that ``simserve chapters``
    measured on the same machine, if any.

    Raises:
        OutputError: the file cannot be written.
    """
    from simserve.report.calibration import write_calibration_page

    write_calibration_page(profile, path, chapters)


def report_on_profile(name_or_path: str | Path, path: Path | None = None) -> Path:
    """Write the report of a shipped profile or a profile file; returns where (beside the file unless ``path`` says).

    Raises:
        ProfileError: there is no such profile, or it is not whole.
        OutputError: the page cannot be written.
    """
    from simserve.report.calibration import report_on_profile as write

    return write(name_or_path, path)


def render_sweep(document: Mapping[str, Any], manifest: Mapping[str, Any], path: Path) -> None:
    """Write the page of a sweep to ``path``: throughput-latency curves with intervals and knees, every measure over the
    load, and the best trade-offs. ``document`` is what ``sweep.json`` holds; a click on a point opens the run's report
    where the document names one, relative to the page. Under about 4 MB however many points.

    Raises:
        OutputError: the file cannot be written.
    """
    from simserve.report.sweep_page import write_sweep_page

    write_sweep_page(document, manifest, path)


def render_knee(document: Mapping[str, Any], manifest: Mapping[str, Any], path: Path) -> None:
    """Write the page of a search for the knee to ``path``: per variant the curve with its saturation rate, load knee
    and batch knee. ``document`` is what ``knee.json`` holds.

    Raises:
        OutputError: the file cannot be written.
    """
    from simserve.report.knee_page import write_knee_page

    write_knee_page(document, manifest, path)


def render_capacity(document: Mapping[str, Any], manifest: Mapping[str, Any], path: Path) -> None:
    """Write the page of a search for capacity to ``path``: what each variant and setting carries within the SLOs, what
    limits it, and what a target rate needs and costs. ``document`` is what ``capacity.json`` holds.

    Raises:
        OutputError: the file cannot be written.
    """
    from simserve.report.capacity_page import write_capacity_page

    write_capacity_page(document, manifest, path)


def render_validation(
    document: Mapping[str, Any], curves: Mapping[str, Any], manifest: Mapping[str, Any], path: Path
) -> None:
    """Write the page of a validation to ``path``: errors with the noise of the real engine, both sides' curves, what
    was known beforehand. ``document`` is what ``validation.json`` holds, ``curves`` what its charts draw.

    Raises:
        OutputError: the file cannot be written.
    """
    from simserve.report.validate_page import write_validation_page

    write_validation_page(document, curves, manifest, path)


def report_on_quantization(path: Path) -> Path:
    """Write the page of what ``simserve quantize`` wrote to ``path``, beside it; returns where.

    Raises:
        ProfileError: the file is not whole.
        OutputError: the page cannot be written.
    """
    from simserve.report.quality_page import report_on_quantization as write

    return write(path)


def report_on_agreement(path: Path) -> Path:
    """Write the page of what ``simserve agreement`` wrote to ``path``, beside it; returns where.

    Raises:
        ProfileError: the file is not whole.
        OutputError: the page cannot be written.
    """
    from simserve.report.quality_page import report_on_agreement as write

    return write(path)
