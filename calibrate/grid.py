"""Which steps to time: prefill over (new tokens, context), decode over (batch size, context), and the points held out.

Held-out points are measured like the others but left out of the first fit: whole rows between fitted rows, and
contexts between fitted contexts, so that their error is the error of interpolating in either direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from calibrate.options import GridSize


class Point(NamedTuple):
    """The shape of one step: ``batch_size`` rows that each compute ``num_new_tokens`` over ``num_context_tokens``."""

    phase: Literal["prefill", "decode"]
    batch_size: int
    num_new_tokens: int
    num_context_tokens: int
    held_out: bool = False

    @property
    def row(self) -> int:
        """Its row in its phase's table."""
        return self.num_new_tokens if self.phase == "prefill" else self.batch_size

    @property
    def cache_tokens(self) -> int:
        """Tokens in the cache when the step ends."""
        return self.batch_size * (self.num_context_tokens + self.num_new_tokens)

    def __str__(self) -> str:
        what = f"{self.row} tokens" if self.phase == "prefill" else f"batch {self.row}"
        return f"{self.phase} {what} × context {self.num_context_tokens}"


@dataclass(frozen=True)
class Axes:
    """Rows and contexts of one phase; the held-out contexts are measured in the rows named beside them."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    held_out_rows: tuple[int, ...]
    held_out_contexts: tuple[int, ...]
    rows_of_held_out_contexts: tuple[int, ...]


@dataclass(frozen=True)
class Limits:
    """The largest rows and contexts to measure; ``None`` leaves the grid's own."""

    max_batch_size: int | None = None
    max_context: int | None = None
    max_prefill_tokens: int | None = None


PREFILL: dict[GridSize, Axes] = {
    "quick": Axes((1, 8, 64, 256), (0, 512), (24,), (), ()),
    "default": Axes((1, 2, 8, 32, 128, 512), (0, 1024), (64,), (384,), (8, 128)),
    "full": Axes(
        (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048), (0, 512, 2048), (24, 96, 384), (1024,), (16, 128, 512)
    ),
}
DECODE: dict[GridSize, Axes] = {
    "quick": Axes((1, 4, 16, 64), (1, 1024), (8,), (256,), (4,)),
    "default": Axes((1, 2, 4, 8, 16, 32, 64), (1, 256, 2048), (12, 24), (1024,), (2, 16)),
    "full": Axes((1, 2, 4, 8, 16, 32, 64), (1, 16, 128, 512, 2048), (6, 12, 24, 48), (1024,), (1, 4, 16, 64)),
}
GPU_PREFILL = Axes(
    (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192), (0, 1024, 4096, 16384), (96, 768, 3072), (8192,), (512,)
)
GPU_DECODE = Axes(
    (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 256, 1024, 4096, 16384), (6, 24, 96, 192), (2048, 8192), (1, 8, 32)
)


def make_grid(size: GridSize, on_gpu: bool, limits: Limits) -> list[Point]:
    """All points of a grid up to ``limits``. A GPU's steps are short, so its default grid is larger than a CPU's full
    one; ``quick`` is the same everywhere."""
    wide = on_gpu and size != "quick"
    prefill = _cut(GPU_PREFILL if wide else PREFILL[size], limits.max_prefill_tokens, limits.max_context)
    decode = _cut(GPU_DECODE if wide else DECODE[size], limits.max_batch_size, limits.max_context)
    points = [Point("prefill", 1, row, context, held) for row, context, held in _cells(prefill)]
    return points + [Point("decode", row, 1, context, held) for row, context, held in _cells(decode)]


def _cut(axes: Axes, max_row: int | None, max_context: int | None) -> Axes:
    """The axes up to the limits, which become the last fitted row and context; held-out ones stay inside."""
    rows, contexts = _up_to(axes.rows, max_row), _up_to(axes.contexts, max_context)
    return Axes(
        rows,
        contexts,
        tuple(row for row in axes.held_out_rows if row < rows[-1]),
        tuple(context for context in axes.held_out_contexts if context < contexts[-1] and context not in contexts),
        tuple(row for row in axes.rows_of_held_out_contexts if row in rows),
    )


def _up_to(values: tuple[int, ...], limit: int | None) -> tuple[int, ...]:
    return values if limit is None else tuple(sorted({min(value, limit) for value in values}))


def _cells(axes: Axes) -> list[tuple[int, int, bool]]:
    cells = [(row, context, False) for row in axes.rows for context in axes.contexts]
    cells += [(row, context, True) for row in axes.held_out_rows for context in axes.contexts]
    cells += [(row, context, True) for row in axes.rows_of_held_out_contexts for context in axes.held_out_contexts]
    return cells
