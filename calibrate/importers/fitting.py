"""Tables of whatever points were read: a grid is kept as it is, scattered points follow a law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.importers.from_laws import decode_by_law, prefill_by_law
from calibrate.importers.laws import LeftOut
from calibrate.importers.reading import PrefillTimes
from calibrate.importers.tables import grid_table, leave_out_of_grid, on_a_grid
from simserve.errors import ProfileError
from simserve.step_time.profile_schema import Table
from simserve.step_time.source import MeasuredPoint
from simserve.step_time.surface import Surface

_GRID_WORDS = (
    "{} tables are the points as given; their held-out errors are of inner rows predicted from the rows beside them "
    "and inner contexts from the contexts beside them, so over twice the distance between points"
)


@dataclass(frozen=True)
class Fitted:
    """Both tables, points predicted without their own group, and what the reader should know."""

    prefill: Table
    decode: Table
    prefill_left_out: list[LeftOut]
    decode_left_out: list[LeftOut]
    notes: tuple[str, ...]


def fit_points(points: Sequence[MeasuredPoint], prefill_times: PrefillTimes) -> Fitted:
    """Fit both phases. Raises ``ProfileError`` when there are too few points, or they make no sense as step times."""
    decodes, prefills = ([p for p in points if p.phase == phase] for phase in ("decode", "prefill"))
    if on_a_grid(decodes, "decode"):
        decode = grid_table(decodes, "decode")
        decode_left, notes = leave_out_of_grid(decode, "decode"), [_GRID_WORDS.format("decode")]
    else:
        decode, decode_left, notes = decode_by_law(decodes)
    if on_a_grid(prefills, "prefill"):
        if prefill_times == "ttft":
            raise ProfileError("prefill: points over cached context are steps, not times to first token; take step")
        prefill = grid_table(prefills, "prefill")
        prefill_left, more = leave_out_of_grid(prefill, "prefill"), [_GRID_WORDS.format("prefill")]
    else:
        prefill, prefill_left, more = prefill_by_law(prefills, prefill_times, Surface(decode).curve(1).at(0))
    return Fitted(prefill, decode, prefill_left, decode_left, (*notes, *more))
