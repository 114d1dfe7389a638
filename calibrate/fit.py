"""From samples to tables: medians per point, and where the tables reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from calibrate.clock import Clock
from calibrate.errors import CalibrationError
from calibrate.grid import Point
from calibrate.measure import seconds_of
from simserve.step_time.monotone import non_decreasing
from simserve.step_time.profile_schema import Sample, Table, TableRow, Validity
from simserve.step_time.source import Phase


def point_medians(samples: Iterable[Sample], clock: Clock) -> dict[Point, float]:
    """Median seconds per point over its clean samples, or over all where it has no clean one; anchors left out."""
    groups: dict[Point, list[Sample]] = {}
    for sample in samples:
        if not sample.anchor:
            groups.setdefault(point_of(sample), []).append(sample)
    return {
        point: median(seconds_of(sample, clock) for sample in ([s for s in group if not s.dirty] or group))
        for point, group in groups.items()
    }


def pooled_medians(samples: Sequence[Sample], clock: Clock) -> dict[Point, float]:
    """Median seconds per point of the first session; where later ones measured the whole grid again, the median over
    all of theirs, so that no process counts more than another."""
    numbers = sorted({sample.session for sample in samples})
    sessions = [point_medians((s for s in samples if s.session == number), clock) for number in numbers]
    whole = [session for session in sessions if any(not point.held_out for point in session)]
    return {point: median(session[point] for session in whole if point in session) for point in whole[0]}


def point_of(sample: Sample) -> Point:
    """The point that a sample is of."""
    alone = sample.phase, sample.batch_size, sample.num_new_tokens, sample.num_context_tokens
    beside = sample.num_decodes, sample.num_decode_context_tokens
    return Point(*alone, sample.held_out, *beside, sample.context_spread, sample.num_repeats)


def make_table(medians: Mapping[Point, float], phase: Phase) -> Table:
    """The table of one phase, without the points held out, never falling along context. Rows with a single context are
    left out, since nothing is known of their slope. Raises ``CalibrationError`` when fewer than two rows remain."""
    rows: dict[int, dict[int, float]] = {}
    for point, seconds in medians.items():
        if point.phase == phase and point.in_table and not point.held_out:
            rows.setdefault(point.row, {})[point.num_context_tokens] = seconds
    table = []
    for row, cells in sorted(rows.items()):
        if len(cells) > 1:
            contexts = tuple(sorted(cells))
            table.append(TableRow(row=row, contexts=contexts, seconds=non_decreasing([cells[c] for c in contexts])))
    if len(table) < 2:
        raise CalibrationError(
            f"{phase}: at least 2 rows of 2 contexts must be measured (got {len(table)}); raise the limits of the grid"
        )
    return Table(rows=tuple(table))


def require_fittable(points: Iterable[Point]) -> None:
    """Raise ``CalibrationError`` now if the points would not make two tables."""
    fitted = dict.fromkeys(points, 1.0)
    make_table(fitted, "prefill")
    make_table(fitted, "decode")


def make_validity(prefill: Table, decode: Table) -> Validity:
    """The outer ranges of both tables."""
    return Validity(
        max_prefill_tokens=prefill.rows[-1].row,
        max_prefill_context=max(row.contexts[-1] for row in prefill.rows),
        max_batch_size=decode.rows[-1].row,
        min_decode_context=min(row.contexts[0] for row in decode.rows),
        max_decode_context=max(row.contexts[-1] for row in decode.rows),
    )
