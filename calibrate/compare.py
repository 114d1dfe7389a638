"""Two profiles at the steps that both of them hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from rich.console import Console
from rich.table import Table as RichTable

from calibrate.listing import error_words
from simserve.errors import ProfileError
from simserve.step_time.profile_schema import HeldOutError, Profile, Table
from simserve.step_time.surface import Below, Surface

MAX_ROWS = 12
MAX_CONTEXTS = 6


@dataclass(frozen=True)
class Ratios:
    """Seconds of the second profile over seconds of the first, by row (new tokens or batch size) and context; only
    where neither extrapolates."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    cells: dict[tuple[int, int], float]

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return geometric_mean(self.cells.values())


def ratios(first: Table, second: Table, below: Below = "flat") -> Ratios:
    """Ratios at the rows and contexts of ``first`` and ``second`` that lie inside both. Raises ``ProfileError`` when
    there is none."""
    surfaces = Surface(first, below), Surface(second, below)
    low, high = (pick(t.rows[i].row for t in (first, second)) for pick, i in ((max, 0), (min, -1)))
    rows = _picked({row.row for t in (first, second) for row in t.rows if low <= row.row <= high}, MAX_ROWS)
    contexts = _picked({c for t in (first, second) for row in t.rows for c in row.contexts}, MAX_CONTEXTS)
    cells = {}
    for row in rows:
        for context in contexts:
            if all(not s.curve(row).ramp(context, 1.0).extrapolated for s in surfaces):
                a, b = (s.curve(row).at(context) for s in surfaces)
                cells[row, context] = b / a
    if not cells:
        raise ProfileError("compare: the profiles must hold a step in common (got ranges that do not meet)")
    return Ratios(tuple(r for r in rows if any(k[0] == r for k in cells)), tuple(contexts), cells)


def compare(first: Profile, second: Profile, console: Console) -> None:
    """Print the ratios of both phases, with what each profile's own error is."""
    for name, profile in (("A", first), ("B", second)):
        made = profile.provenance
        console.print(
            f"{name}: [bold]{profile.name}[/], {made.model} in {made.dtype} on {made.tensor_parallel} × "
            f"{made.device_name} ({made.origin}); held-out error {error_words(profile)} (prefill / decode)"
        )
    if first.provenance.dimensions != second.provenance.dimensions:
        console.print("[yellow]note[/]: the two are of different models")
    a, b = first.held_out, second.held_out
    _draw(ratios(first.prefill, second.prefill, "linear"), "prefill", _joint(a.prefill, b.prefill), console)
    _draw(ratios(first.decode, second.decode), "decode", _joint(a.decode, b.decode), console)


def _joint(first: HeldOutError, second: HeldOutError) -> float | None:
    """How far a ratio may lie from 1 by the two errors together."""
    if first.mean is None or second.mean is None:
        return None
    return math.hypot(first.mean, second.mean)


def _draw(found: Ratios, phase: str, joint: float | None, console: Console) -> None:
    within = "" if joint is None else f"bold: beyond both errors together ({joint:.1%})"
    console.print(f"{phase}: B / A, {found.mean:.3f} on average; columns: cached tokens per sequence; {within}")
    out = RichTable()
    out.add_column("new tokens" if phase == "prefill" else "batch size", justify="right")
    for context in found.contexts:
        out.add_column(f"{context:,}", justify="right")
    for row in found.rows:
        out.add_row(f"{row:,}", *(_cell(found.cells.get((row, context)), joint) for context in found.contexts))
    console.print(out)


def _cell(ratio: float | None, joint: float | None) -> str:
    if ratio is None:
        return ""
    text = f"{ratio:.3f}"
    return f"[bold]{text}[/]" if joint is not None and abs(math.log(ratio)) > math.log1p(joint) else text


def _picked(values: set[int], limit: int) -> Sequence[int]:
    """At most ``limit`` of the values, evenly through their order, the smallest and the largest among them."""
    ordered = sorted(values)
    if len(ordered) <= limit:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (limit - 1))] for i in range(limit)]
