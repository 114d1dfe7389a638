"""How wrong tables are between their points: each measured point against what its neighbours on both sides say.

Leaving a point out doubles the gap that is interpolated, so these errors are larger than those within the grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.step_time.operators.grid import Values, leave_one_out
from simserve.step_time.operators.line import Line
from simserve.step_time.operators.packing import attended_pairs
from simserve.step_time.operators.tables import OperatorTables


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Relative errors (shares, not percent) at the points of one table that lie inside along one of its axes."""

    operator: Values
    step: Values


def left_out(tables: OperatorTables, num_layers: int) -> dict[str, LeftOut]:
    """Errors by table and axis, of the operator alone and of the whole step of ``num_layers`` that holds it."""
    attention = tables.attention
    none = (0.0,)
    prefill_axes = (attention.tokens, attention.contexts, none, none)
    decode_axes = (none, none, attention.decodes, attention.decode_contexts)
    grids = [
        ("prefill", attention.prefill[:, :, None, None], prefill_axes),
        ("decode", attention.decode[None, None], decode_axes),
    ]
    if attention.mixed is not None:
        grids.append(("mixed", attention.mixed, attention.mixed_axes))
    found: dict[str, LeftOut] = {}
    for name, values, axes in grids:
        found.update(_of_grid(name, values, [np.array(axis) for axis in axes], tables, num_layers))
    least = min(np.nanmin(attention.prefill), np.nanmin(attention.decode))
    found["dense tokens"] = _of_line(tables.layer, least + tables.step.at(1)[0] / num_layers)
    return {name: errors for name, errors in found.items() if len(errors.step)}


def mean_error(tables: OperatorTables, num_layers: int) -> float | None:
    """The mean relative error of whole steps over all points and axes; None if no point has neighbours."""
    errors = [each.step for each in left_out(tables, num_layers).values()]
    return float(np.concatenate(errors).mean()) if errors else None


def _of_grid(
    name: str, values: Values, axes: list[Values], tables: OperatorTables, num_layers: int
) -> dict[str, LeftOut]:
    """Along each axis of (tokens, contexts, decodes, decode contexts); tokens are linear in attended pairs."""
    q, c, n, k = np.meshgrid(*axes, indexing="ij", sparse=True)
    rest = _rest(axes[0], axes[2], tables)[:, None, :, None]
    found = {}
    for axis, (label, scale) in enumerate(
        (("tokens", attended_pairs(q, c)), ("contexts", c), ("decodes", n), ("decode contexts", k))
    ):
        off = np.abs(leave_one_out(values, np.broadcast_to(scale, values.shape), axis) - values)
        step = num_layers * off / (rest + num_layers * (values + _layer(axes[0], axes[2], tables)[:, None, :, None]))
        inside = np.isfinite(off)
        found[f"{name} {label}"] = LeftOut((off / values)[inside], step[inside])
    return found


def _of_line(line: Line, rest_s: float) -> LeftOut:
    seconds = np.array(line.seconds)
    off = np.abs(leave_one_out(seconds, np.array(line.sizes), 0) - seconds)
    inside = np.isfinite(off)
    return LeftOut((off / seconds)[inside], (off / (seconds + rest_s))[inside])


def _layer(tokens: Values, decodes: Values, tables: OperatorTables) -> Values:
    return np.array([[tables.layer.at(q + n)[0] for n in decodes] for q in tokens])


def _rest(tokens: Values, decodes: Values, tables: OperatorTables) -> Values:
    return np.array([[tables.step.at(q + n)[0] + tables.rows.at((q > 0) + n)[0] for n in decodes] for q in tokens])
