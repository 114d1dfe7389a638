"""What happened over time: throughput, sequences in flight and queue, one line per variant on a common clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from simserve.report.aggregate import Floats, resample_means
from simserve.report.figure import Figure, Table, duration_tip, finish, number_axis, number_tip, time_x
from simserve.report.lines import grid_rows, variant_lines
from simserve.report.style import VariantStyle
from simserve.report.words import dig, grouped, number, significant

NUM_BINS = 120  # a bin of about eight pixels on a desk, three on a phone


class _Series(NamedTuple):
    column: str
    title: str
    axis: str
    caption: str
    mean: str  # the path of its mean in the summary


_SERIES = (
    _Series(
        "output_tokens_per_s",
        "Throughput",
        "output tokens per second",
        "Output tokens per second from first arrival to last answer:",
        "output_tokens_per_s",
    ),
    _Series(
        "num_running",
        "Sequences in flight",
        "sequences admitted",
        "Admitted and not yet released, on average:",
        "mean_running",
    ),
    _Series(
        "batch_size",
        "Batch size",
        "rows per step",
        "Rows that a step computes (finished members of a static batch included; zero while idle). Mean over steps:",
        "mean_batch_size",
    ),
    _Series(
        "num_waiting",
        "Queue",
        "requests waiting",
        "Arrived and not yet admitted, on average:",
        "mean_waiting",
    ),
)


def load_figures(
    styles: Sequence[VariantStyle],
    timelines: Mapping[str, pd.DataFrame],
    summaries: Mapping[str, Mapping[str, Any]],
) -> list[Figure]:
    """Throughput, running, batch size and queue over time; none when no variant took any time."""
    ran = [style for style in styles if len(timelines[style.name])]
    if not ran:
        return []
    end_s = max(float(timelines[style.name]["end_s"].iloc[-1]) for style in ran)
    edges = np.linspace(0.0, end_s, NUM_BINS + 1)
    figures = []
    for series in _SERIES:
        columns = {style.key: _means(timelines[style.name], series.column, edges) for style in ran}
        spec = _spec(series, edges, columns, ran)
        caption = _caption(series, ran, summaries)
        table = _table(series, ran, timelines)
        figures.append(Figure(f"load-{series.column}", series.title, caption, spec, table))
    return figures


def bounds_of(timeline: pd.DataFrame) -> Floats:
    """The edges of a timeline's bins, seconds."""
    return np.append(timeline["begin_s"].to_numpy(np.float64), float(timeline["end_s"].iloc[-1]))


def _means(timeline: pd.DataFrame, column: str, edges: Floats) -> Floats:
    return resample_means(bounds_of(timeline), timeline[column].to_numpy(np.float64), edges)


def _spec(
    series: _Series, edges: Floats, columns: Mapping[str, Floats], styles: Sequence[VariantStyle]
) -> dict[str, Any]:
    tooltip = [duration_tip("t", "time"), *(number_tip(style.key, style.name) for style in styles)]
    middle = (edges[:-1] + edges[1:]) / 2
    value = alt.Y("value:Q", axis=number_axis(series.axis, ticks=5, grid=True), scale=alt.Scale(zero=True))
    rows = grid_rows("t", middle, columns)
    return finish(variant_lines(rows, styles, time_x("t", float(edges[-1])), value, tooltip), 220)


def _caption(series: _Series, styles: Sequence[VariantStyle], summaries: Mapping[str, Mapping[str, Any]]) -> str:
    means = {style.name: dig(summaries[style.name], series.mean) for style in styles}
    return f"{series.caption} {grouped({name: number(mean) for name, mean in means.items()})}."


def _table(series: _Series, styles: Sequence[VariantStyle], timelines: Mapping[str, pd.DataFrame]) -> Table:
    """Means over the quarters of each variant's own run, and the highest bin."""
    rows = []
    for style in styles:
        bounds = bounds_of(timelines[style.name])
        values = timelines[style.name][series.column].to_numpy(np.float64)
        quarters = resample_means(bounds, values, np.linspace(bounds[0], bounds[-1], 5))
        rows.append((style.name, *(significant(float(value)) for value in (*quarters, values.max()))))
    return Table(("variant", "first quarter", "second", "third", "last quarter", "peak"), tuple(rows))
