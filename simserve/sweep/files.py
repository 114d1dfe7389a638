"""The files of a finished sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from simserve.summary import to_json
from simserve.sweep.run_reports import RUNS
from simserve.tasks.folder import StudyFolder

VERDICTS = ("grows", "growth_tested", "growth_p", "stopped_early", "leaves_unanswered")
FILES = ("sweep.json", "points.parquet", "sweep.html", "manifest.json", RUNS)


def write_files(folder: StudyFolder, document: dict[str, Any], manifest: dict[str, Any]) -> None:
    """Write the document, the table and the page, each whole or not at all. Raises OutputError."""
    from simserve.report import render_sweep

    folder.write("sweep.html", lambda path: render_sweep(document, manifest, path))
    folder.write("points.parquet", lambda path: points_frame(document).to_parquet(path, index=False))
    folder.write("sweep.json", lambda path: path.write_text(to_json(document), encoding="utf-8"))
    folder.write("manifest.json", lambda path: path.write_text(to_json(manifest), encoding="utf-8"))


def points_frame(document: Mapping[str, Any]) -> pd.DataFrame:
    """One row per point: settings by key, variant, verdicts, and for each metric its value and interval
    (``ttft_s.p99``, ``ttft_s.p99.low``, ``ttft_s.p99.high``)."""
    points = document["points"]
    columns: dict[str, Any] = {
        axis["key"]: _column([point["settings"][axis["key"]] for point in points]) for axis in document["axes"]
    }
    for name in ("variant", *VERDICTS, "pareto", "report", "command"):
        columns[name] = [point[name] for point in points]
    columns["growth_p"] = pd.array(columns["growth_p"], dtype="Float64")
    unknown = {"value": None, "low": None, "high": None}  # what some variants have and others do not
    for metric in dict.fromkeys(metric for point in points for metric in point["metrics"]):
        intervals = [point["metrics"].get(metric, unknown) for point in points]
        columns[metric] = pd.array([each["value"] for each in intervals], dtype="Float64")
        columns[f"{metric}.low"] = pd.array([each["low"] for each in intervals], dtype="Float64")
        columns[f"{metric}.high"] = pd.array([each["high"] for each in intervals], dtype="Float64")
    return pd.DataFrame(columns)


def _column(values: Sequence[Any]) -> list[Any]:
    """Values of one type, as parquet wants them: what is mixed becomes text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return [float(value) if kinds == {int, float} and value is not None else value for value in values]
    return [None if value is None else str(value) for value in values]
