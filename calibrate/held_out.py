"""Random steps inside the ranges of a grid, measured and never fitted: their error is what a simulation must expect."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from calibrate.grid import Axes, MixedAxes, Point
from calibrate.options import GridSize

# prefill, decode, mixed, packed prompts, decodes over unequal contexts
_COUNTS: dict[GridSize, tuple[int, int, int, int, int]] = {
    "quick": (3, 3, 2, 1, 1),
    "standard": (10, 12, 10, 4, 4),
    "full": (16, 20, 16, 6, 6),
}
_SPREAD = 0.75
_MOST_PROMPTS = 8


def held_out_points(size: GridSize, axes: tuple[Axes, Axes, MixedAxes], seed: int) -> list[Point]:
    """Points of every kind, log-uniform in tokens, batch sizes and contexts from the smallest to the largest of the
    grid; none is a point of the grid. A range too small to hold as many new ones gives fewer."""
    prefill, decode, mixed = axes
    draw = _Draw(seed)
    makers: tuple[Callable[[], Point], ...] = (
        lambda: Point("prefill", 1, draw(prefill.rows), draw(prefill.contexts), True),
        lambda: Point("decode", draw(decode.rows), 1, draw(decode.contexts), True),
        lambda: Point(
            "mixed",
            1,
            draw(mixed.num_new_tokens),
            draw(mixed.contexts),
            True,
            draw(mixed.num_decodes),
            draw(mixed.decode_contexts),
        ),
        lambda: _packed(draw, prefill),
        lambda: Point("decode", draw((2, *decode.rows)), 1, draw(decode.contexts[1:]), True, 0, 0, _SPREAD),
    )
    found: dict[tuple[object, ...], Point] = {}
    for make, count in zip(makers, _COUNTS[size], strict=True):
        tried = (make() for _ in range(10 * count))
        new = {point.shape: point for point in tried if not _is_of_grid(point, axes)}
        found |= dict(list(new.items())[:count])
    return list(found.values())


class _Draw:
    """Whole numbers, log-uniform over the range of some values (shifted by one, since contexts may be 0)."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"held out {seed}")

    def __call__(self, values: Sequence[int]) -> int:
        low, high = math.log(1 + min(values)), math.log(1 + max(values))
        return round(math.exp(low + (high - low) * self._random.random())) - 1


def _packed(draw: _Draw, prefill: Axes) -> Point:
    prompts = draw((2, _MOST_PROMPTS))
    return Point("prefill", prompts, max(1, draw(prefill.rows) // prompts), 0, True)


def _is_of_grid(point: Point, axes: tuple[Axes, Axes, MixedAxes]) -> bool:
    prefill, decode, mixed = axes
    if point.phase == "mixed":
        return point.num_new_tokens in mixed.num_new_tokens and point.num_decodes in mixed.num_decodes
    if not point.in_table:
        return point.batch_size < 2
    table = prefill if point.phase == "prefill" else decode
    return point.row in table.rows and point.num_context_tokens in table.contexts
