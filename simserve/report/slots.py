"""Who occupied which slot: a Gantt chart of small runs, and how slot-time was spent for runs of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from simserve.records import NEVER, Records
from simserve.report.aggregate import rounded
from simserve.report.figure import Figure, Table, TopChart, data, duration_tip, finish, time_x
from simserve.report.style import VariantStyle
from simserve.report.words import share
from simserve.request import IntColumn
from simserve.step_time.stretch import NS_PER_S

MAX_BARS = 1_500  # of one variant
MAX_SLOTS = 64
MAX_VARIANTS = 8
PHASES = ("prefill", "decode", "idle-held")
FILLS = {"prefill": "var(--slot-prefill)", "decode": "var(--slot-decode)", "idle-held": "url(#hatch-idle)"}


def slot_figures(styles: Sequence[VariantStyle], records: Mapping[str, Records]) -> tuple[list[Figure], str]:
    """A Gantt chart per variant, and a sentence about those left out (empty when none was)."""
    end_ns = max((_end_ns(records[style.name]) for style in styles), default=0)
    drawn = [style for style in styles if _is_small(records[style.name])][:MAX_VARIANTS]
    figures = [_figure(style, records[style.name], end_ns) for style in drawn]
    left_out = [style.name for style in styles if style not in drawn and len(records[style.name].occupancy.rows)]
    if not left_out:
        return figures, ""
    sentence = (
        f"Slot charts are drawn for runs of at most {MAX_BARS:,} bars on at most {MAX_SLOTS} slots, and for at most "
        f"{MAX_VARIANTS} variants; left out: {', '.join(left_out)}."
    )
    return figures, sentence


def slot_shares(records: Records) -> dict[str, float]:
    """Share of the slot-time (slots × time from first arrival to the last release) per phase; the rest was empty."""
    columns = records.occupancy.as_released()
    whole_ns = records.max_num_seqs * _end_ns(records)
    spent = [int(np.maximum(end - begin, 0).sum()) for begin, end in _phases(columns)]
    return {name: spent[i] / whole_ns if whole_ns else 0.0 for i, name in enumerate(PHASES)}


def slot_table(styles: Sequence[VariantStyle], records: Mapping[str, Records]) -> Table:
    """How slot-time was spent, per variant."""
    rows = []
    for style in styles:
        shares = slot_shares(records[style.name])
        empty = max(0.0, 1.0 - sum(shares.values()))
        rows.append((style.name, *(share(shares[phase]) for phase in PHASES), share(empty)))
    return Table(("variant", *PHASES, "empty"), tuple(rows))


def occupancy_bars(columns: Mapping[str, IntColumn]) -> pd.DataFrame:
    """One row per phase of an admission that takes time: ``slot``, ``request_id``, ``phase`` (an index of ``PHASES``),
    ``begin_ns``, ``end_ns``. A phase that never began takes no time: the one before lasts until the release."""
    begins, ends = zip(*_phases(columns), strict=True)
    bars = pd.DataFrame(
        {
            "slot": np.tile(columns["slot"], 3),
            "request_id": np.tile(columns["request_id"], 3),
            "phase": np.repeat(np.arange(3), len(columns["slot"])),
            "begin_ns": np.concatenate(begins),
            "end_ns": np.concatenate(ends),
        }
    )
    return bars[bars["end_ns"] > bars["begin_ns"]]


def _phases(columns: Mapping[str, IntColumn]) -> tuple[tuple[IntColumn, IntColumn], ...]:
    """Begin and end of each of ``PHASES``."""
    released, idle, decoding = columns["released_ns"], columns["idle_ns"], columns["decoding_ns"]
    idle = np.where(idle == NEVER, released, idle)
    decoding = np.where(decoding == NEVER, idle, decoding)
    return (columns["admitted_ns"], decoding), (decoding, idle), (idle, released)


def _is_small(records: Records) -> bool:
    if not 0 < len(records.occupancy.rows) <= MAX_BARS:
        return False
    bars = occupancy_bars(records.occupancy.columns())
    return len(bars) <= MAX_BARS and len(bars) > 0 and int(bars["slot"].max()) < MAX_SLOTS


def _end_ns(records: Records) -> int:
    return int(records.occupancy.as_released()["released_ns"].max(initial=0))


def _figure(style: VariantStyle, records: Records, end_ns: int) -> Figure:
    shares = slot_shares(records)
    caption = (
        f"Of the slot-time of {style.name}, {share(shares['decode'])} decodes, {share(shares['prefill'])} prefills and "
        f"{share(shares['idle-held'])} is held by requests whose last token is already computed."
    )
    bars = occupancy_bars(records.occupancy.columns())
    height = max(90, min(22 * (int(bars["slot"].max()) + 1), 640))
    spec = finish(_gantt(bars, end_ns / NS_PER_S), height)
    return Figure(f"slots-{style.key}", style.name, caption, spec, wide=True)


def _gantt(bars: pd.DataFrame, end_s: float) -> TopChart:
    slots = list(range(1, int(bars["slot"].max()) + 2))
    bands = alt.Scale(domain=slots, paddingInner=0.18, paddingOuter=0.1)
    place = alt.Y("slot:O", axis=alt.Axis(title="slot", grid=False), scale=bands)
    time = time_x("begin", end_s, ticks=8, grid=True)
    marks = alt.Chart().mark_bar(stroke="var(--surface)", strokeWidth=0.3, cornerRadius=1)
    fills = alt.Scale(domain=list(FILLS), range=list(FILLS.values()))
    tooltip = [
        alt.Tooltip("request:N"),
        alt.Tooltip("phase:N"),
        duration_tip("begin", "from"),
        duration_tip("end", "to"),
    ]
    color = alt.Color("phase:N", scale=fills, legend=None)
    rectangles = marks.encode(place, time, alt.X2("end:Q"), color, tooltip=tooltip)
    label = alt.Chart().mark_text(fontSize=10, color="var(--slot-label)")
    placed = label.encode(place, alt.X("middle:Q"), text="request:N")
    wide = placed.transform_filter(f"datum.phase == 'decode' && datum.end - datum.begin > {end_s / 25:.6g}")
    named = wide.transform_calculate(middle="(datum.begin + datum.end) / 2")
    return alt.layer(rectangles, named, data=data(_rows(bars)))


def _rows(bars: pd.DataFrame) -> list[dict[str, Any]]:
    columns = {
        "slot": (bars["slot"] + 1).tolist(),
        "request": bars["request_id"].tolist(),
        "phase": [PHASES[phase] for phase in bars["phase"]],
        "begin": rounded(bars["begin_ns"].to_numpy() / NS_PER_S, 7),
        "end": rounded(bars["end_ns"].to_numpy() / NS_PER_S, 7),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
