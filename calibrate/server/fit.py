"""From what a server showed to step-time tables.

TTFT of a prompt alone is a prefill step over an empty context. Prefill over cached tokens cannot be seen from outside,
but its cost can: TTFT over the prompt's length P bends as a + b·P + c·P²/2, where c is the seconds that one pair of
(query, key) costs, so a chunk of n tokens over C cached ones costs c·n·C more. The table holds that slope over one
token of context; whatever reaches further is flagged as extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from calibrate.errors import CalibrationError
from calibrate.grid import Point
from simserve.step_time.profile_schema import HeldOut, HeldOutError, Sample, Table, TableRow
from simserve.step_time.surface import Surface

_LEAST_PROMPTS = 3  # for a bend


@dataclass(frozen=True)
class Fit:
    """Tables over everything that was measured, and their error on what is held out."""

    prefill: Table
    decode: Table
    held_out: HeldOut
    pair_s: float


def medians_of(samples: Sequence[Sample]) -> dict[Point, float]:
    """Median seconds per point over its undisturbed samples, or over all where it has none."""
    groups: dict[Point, list[Sample]] = {}
    for s in samples:
        point = Point(s.phase, s.batch_size, s.num_new_tokens, s.num_context_tokens, s.held_out)
        groups.setdefault(point, []).append(s)
    return {
        point: median(s.wall_s for s in ([s for s in group if not s.dirty] or group)) for point, group in groups.items()
    }


def fit(samples: Sequence[Sample]) -> Fit:
    """Fit ``samples``. Raises ``CalibrationError`` if too little was measured."""
    medians = medians_of(samples)
    fitted = {point: seconds for point, seconds in medians.items() if not point.held_out}
    prefill, decode = prefill_table(fitted), decode_table(fitted)
    ttft, itl = Surface(prefill, "linear"), Surface(decode)
    errors: dict[str, list[float]] = {"prefill": [], "decode": []}
    for point, seconds in medians.items():
        if point.held_out:
            surface = ttft if point.phase == "prefill" else itl
            predicted = surface.curve(point.row).at(point.num_context_tokens)
            errors[point.phase].append(abs(predicted - seconds) / seconds)
    held_out = HeldOut(
        prefill=_summary(errors["prefill"]),
        decode=_summary(errors["decode"]),
        all=_summary(errors["prefill"] + errors["decode"]),
    )
    return Fit(prefill, decode, held_out, pair_seconds(_ttft(fitted)))


def prefill_table(medians: Mapping[Point, float]) -> Table:
    """TTFT at context 0, and the cost of attention to one more token at context 1."""
    ttft = _ttft(medians)
    if len(ttft) < 2:
        raise CalibrationError(
            f"prefill: at least 2 prompt lengths must be measured (got {len(ttft)}); allow more time"
        )
    pair_s = pair_seconds(ttft)
    rows = [TableRow(row=n, contexts=(0, 1), seconds=(s, s + pair_s * n)) for n, s in sorted(ttft.items())]
    return Table(rows=tuple(rows))


def decode_table(medians: Mapping[Point, float]) -> Table:
    """ITL over streams and context; rows of a single context are left out."""
    rows: dict[int, dict[int, float]] = {}
    for point, seconds in medians.items():
        if point.phase == "decode":
            rows.setdefault(point.batch_size, {})[point.num_context_tokens] = seconds
    whole = {row: cells for row, cells in sorted(rows.items()) if len(cells) > 1}
    if len(whole) < 2:
        rule = "at least 2 numbers of streams must be measured at 2 contexts"
        raise CalibrationError(f"decode: {rule} (got {len(whole)}); allow more time, or smaller limits")
    return Table(
        rows=tuple(
            TableRow(row=row, contexts=tuple(sorted(cells)), seconds=tuple(cells[c] for c in sorted(cells)))
            for row, cells in whole.items()
        )
    )


def pair_seconds(ttft: Mapping[int, float]) -> float:
    """Seconds per (query, key) pair from the bend of TTFT over the prompt's length, by least squares of relative
    errors; 0 where it bends the other way or there are too few lengths."""
    if len(ttft) < _LEAST_PROMPTS:
        return 0.0
    lengths, seconds = np.array(list(ttft), float), np.array(list(ttft.values()))
    terms = np.stack([np.ones_like(lengths), lengths, lengths**2 / 2], axis=1)
    solution, *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones_like(seconds), rcond=None)
    return max(0.0, float(solution[2]))


def repeat_spread(samples: Sequence[Sample]) -> float | None:
    """Mean relative distance of samples from their point's median, over points with at least two; ``None`` without."""
    medians = medians_of(samples)
    groups: dict[Point, list[float]] = {}
    for s in samples:
        point = Point(s.phase, s.batch_size, s.num_new_tokens, s.num_context_tokens, s.held_out)
        groups.setdefault(point, []).append(abs(s.wall_s - medians[point]) / medians[point])
    spreads = [spread for group in groups.values() if len(group) > 1 for spread in group]
    return float(np.mean(spreads)) if spreads else None


def _ttft(medians: Mapping[Point, float]) -> dict[int, float]:
    return {point.row: seconds for point, seconds in medians.items() if point.phase == "prefill"}


def _summary(errors: list[float]) -> HeldOutError:
    if not errors:
        return HeldOutError(num_points=0, mean=None, p95=None, max=None)
    p95 = float(np.percentile(errors, 95))
    return HeldOutError(num_points=len(errors), mean=float(np.mean(errors)), p95=p95, max=max(errors))
