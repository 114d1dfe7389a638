"""What to ask of a server: prompts alone for TTFT, and equal streams together for ITL."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from calibrate.errors import CalibrationError
from calibrate.grid import Limits, Point


@dataclass(frozen=True)
class ServerGrid:
    """Prompt lengths; numbers of streams and contexts, every pair of them; ``held_out_…`` are measured but not fitted:
    prompt lengths, and (streams, context) between the fitted ones. ``window`` is how many tokens of each stream one
    sample of ITL is taken over."""

    prompts: tuple[int, ...]
    streams: tuple[int, ...]
    contexts: tuple[int, ...]
    held_out_prompts: tuple[int, ...]
    held_out_decodes: tuple[tuple[int, int], ...]
    repeats: int
    window: int


QUICK = ServerGrid((16, 128, 512), (1, 4, 8), (64, 512), (256,), ((2, 64), (4, 256)), 2, 16)
STANDARD = ServerGrid(
    (16, 64, 128, 256, 512, 1024),
    (1, 2, 4, 8, 16),
    (32, 256, 1024),
    (96, 384, 768),
    ((3, 32), (6, 256), (12, 256), (4, 128), (8, 768)),
    3,
    24,
)
FULL = ServerGrid(
    (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    (1, 2, 4, 8, 16, 32, 64),
    (32, 128, 512, 1024, 2048),
    (48, 192, 768, 3072),
    ((3, 128), (6, 512), (12, 1024), (24, 512), (48, 512), (4, 256), (16, 768), (8, 1536)),
    5,
    32,
)
_BY_NAME = {"quick": QUICK, "full": FULL}


def find_grid(size: str) -> ServerGrid:
    """The grid of ``--grid``; anything but ``quick`` and ``full`` is the standard one."""
    return _BY_NAME.get(size, STANDARD)


def make_points(grid: ServerGrid, limits: Limits) -> list[Point]:
    """The points of ``grid`` up to ``limits``, which become the last ones; held-out ones stay inside. Raises
    ``CalibrationError`` if two tables cannot be made of what is left."""
    prompts = _up_to(grid.prompts, limits.max_prefill_tokens)
    streams = _up_to(grid.streams, limits.max_batch_size)
    contexts = _up_to(grid.contexts, limits.max_context)
    for name, values in (("max_prefill_tokens", prompts), ("max_batch_size", streams), ("max_context", contexts)):
        if len(values) < 2:
            raise CalibrationError(f"{name}: must leave at least 2 values of the grid (got {values}); raise it")
    points = [Point("prefill", 1, prompt, 0) for prompt in prompts]
    points += [Point("prefill", 1, prompt, 0, True) for prompt in grid.held_out_prompts if prompt < prompts[-1]]
    points += [Point("decode", number, 1, context) for number, context in product(streams, contexts)]
    inside = [(b, c) for b, c in grid.held_out_decodes if b < streams[-1] and c <= contexts[-1] and _is_new(b, c, grid)]
    return points + [Point("decode", number, 1, context, True) for number, context in inside]


def _is_new(number: int, context: int, grid: ServerGrid) -> bool:
    return not (number in grid.streams and context in grid.contexts)


def _up_to(values: tuple[int, ...], limit: int | None) -> tuple[int, ...]:
    return values if limit is None else tuple(sorted({min(value, limit) for value in values}))
