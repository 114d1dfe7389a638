"""Which steps to time: prefill over (new tokens, context), decode over (batch size, context), mixed steps over both,
the whole sequence without a cache; and random steps inside the same ranges, held out to see how wrong the fit is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from calibrate.options import GridSize

PhaseName = Literal["prefill", "decode", "mixed", "no_cache"]
Shape = tuple[str, int, int, int, int, int, float]


class Point(NamedTuple):
    """The shape of one step: ``batch_size`` sequences that each compute ``num_new_tokens`` over ``num_context_tokens``,
    and ``num_decodes`` more that compute one over ``num_decode_context_tokens``; see ``Sample``. With ``num_repeats``
    it is the last step of a chain: so many of the same decision come before it."""

    phase: PhaseName
    batch_size: int
    num_new_tokens: int
    num_context_tokens: int
    held_out: bool = False
    num_decodes: int = 0
    num_decode_context_tokens: int = 0
    context_spread: float = 0.0
    num_repeats: int = 0

    @property
    def row(self) -> int:
        """Its row in its phase's table."""
        return self.batch_size if self.phase == "decode" else self.num_new_tokens

    @property
    def cache_tokens(self) -> int:
        """Tokens in the cache when the step ends."""
        if self.phase == "no_cache":
            return 0
        beside = self.num_decodes * (self.num_decode_context_tokens + 1)
        return self.batch_size * (self.num_context_tokens + self.num_new_tokens) + beside

    @property
    def in_table(self) -> bool:
        """Whether it is a cell of the prefill or decode table; the others check or correct what those compose to."""
        alone = self.batch_size == 1 or self.phase == "decode"
        return self.phase in ("prefill", "decode") and alone and not self.context_spread and not self.num_repeats

    @property
    def shape(self) -> Shape:
        """What identifies it, as ``Sample.shape``."""
        beside = self.num_decodes, self.num_decode_context_tokens
        return self.phase, self.batch_size, self.num_new_tokens, self.num_context_tokens, *beside, self.context_spread

    def decode_contexts(self) -> list[int]:
        """The context of each decode of a ``decode`` point: evenly spread about the mean."""
        mean, last = self.num_context_tokens, max(1, self.batch_size - 1)
        spread = mean * self.context_spread
        return [max(1, round(mean - spread + 2 * spread * i / last)) for i in range(self.batch_size)]

    def __str__(self) -> str:
        if self.phase == "no_cache":
            return f"no cache {self.num_new_tokens} tokens"
        what = f"{self.row} tokens" if self.phase != "decode" else f"batch {self.row}"
        prompts = f"{self.batch_size} × " if self.batch_size > 1 and self.phase != "decode" else ""
        spread = f" ± {self.context_spread:.0%}" if self.context_spread else ""
        beside = f" beside {self.num_decodes} decodes × {self.num_decode_context_tokens}" if self.num_decodes else ""
        behind = f" behind {self.num_repeats} of its kind" if self.num_repeats else ""
        return f"{self.phase} {prompts}{what} × context {self.num_context_tokens}{spread}{beside}{behind}"


@dataclass(frozen=True)
class Axes:
    """Rows and contexts of one phase: every pair is measured."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]


@dataclass(frozen=True)
class MixedAxes:
    """New tokens and context of a chunk, number and context of the decodes beside it: every combination is measured."""

    num_new_tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    num_decodes: tuple[int, ...]
    decode_contexts: tuple[int, ...]


@dataclass(frozen=True)
class Limits:
    """The largest rows and contexts to measure; ``None`` leaves the grid's own."""

    max_batch_size: int | None = None
    max_context: int | None = None
    max_prefill_tokens: int | None = None


PREFILL: dict[GridSize, Axes] = {
    "quick": Axes((1, 8, 32, 64, 256), (0, 512)),
    "standard": Axes((1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (0, 256, 1024)),
    "full": Axes((1, 2, 4, 8, 16, 24, 32, 64, 96, 128, 256, 384, 512, 1024, 2048), (0, 512, 1024, 2048)),
}
DECODE: dict[GridSize, Axes] = {
    "quick": Axes((1, 2, 4, 8, 16, 64), (1, 1024)),
    "standard": Axes((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64), (1, 256, 1024, 2048)),
    "full": Axes((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), (1, 16, 128, 512, 1024, 2048)),
}
MIXED: dict[GridSize, MixedAxes] = {
    "quick": MixedAxes((8, 128), (0,), (4, 16), (256,)),
    "standard": MixedAxes((8, 32, 128), (0, 512), (2, 8, 32), (128, 1024)),
    "full": MixedAxes((8, 32, 128, 512), (0, 1024), (2, 8, 32), (128, 1024)),
}
NO_CACHE: dict[GridSize, tuple[int, ...]] = {
    "quick": (16, 128),
    "standard": (16, 64, 256, 1024),
    "full": (16, 64, 256, 512, 1024, 2048),
}
GPU_PREFILL = Axes((1, 8, 16, 32, 64, 96, 128, 256, 512, 768, 1024, 2048, 4096, 8192), (0, 1024, 4096, 8192, 16384))
GPU_DECODE = Axes((1, 2, 4, 6, 8, 16, 24, 32, 64, 96, 128, 192, 256), (1, 256, 1024, 2048, 4096, 8192, 16384))
GPU_MIXED = MixedAxes((32, 128, 512, 2048), (0, 4096), (4, 32, 128), (256, 4096))
GPU_NO_CACHE = (16, 64, 256, 1024, 4096, 8192)


def make_grid(size: GridSize, on_gpu: bool, limits: Limits) -> list[Point]:
    """All points of a grid up to ``limits``. A GPU's steps are short, so its standard grid is larger than a CPU's full
    one; ``quick`` is the same everywhere."""
    prefill, decode, mixed = make_axes(size, on_gpu, limits)
    lengths = _up_to(GPU_NO_CACHE if _is_wide(size, on_gpu) else NO_CACHE[size], limits.max_prefill_tokens)
    points = [Point("prefill", 1, row, context) for row, context in product(prefill.rows, prefill.contexts)]
    points += [Point("decode", row, 1, context) for row, context in product(decode.rows, decode.contexts)]
    for new, context, decodes, decode_context in product(
        mixed.num_new_tokens, mixed.contexts, mixed.num_decodes, mixed.decode_contexts
    ):
        points.append(Point("mixed", 1, new, context, False, decodes, decode_context))
    return points + [Point("no_cache", 1, length, 0) for length in lengths]


def make_axes(size: GridSize, on_gpu: bool, limits: Limits) -> tuple[Axes, Axes, MixedAxes]:
    """The axes of prefill, decode and mixed steps up to the limits, which become the last row and context."""
    wide = _is_wide(size, on_gpu)
    prefill, decode = (GPU_PREFILL, GPU_DECODE) if wide else (PREFILL[size], DECODE[size])
    mixed = GPU_MIXED if wide else MIXED[size]
    tokens, batch, context = limits.max_prefill_tokens, limits.max_batch_size, limits.max_context
    return (
        Axes(_up_to(prefill.rows, tokens), _up_to(prefill.contexts, context)),
        Axes(_up_to(decode.rows, batch), _up_to(decode.contexts, context)),
        MixedAxes(
            _up_to(mixed.num_new_tokens, tokens),
            _up_to(mixed.contexts, context),
            _up_to(mixed.num_decodes, batch),
            _up_to(mixed.decode_contexts, context),
        ),
    )


def _is_wide(size: GridSize, on_gpu: bool) -> bool:
    return on_gpu and size != "quick"


def _up_to(values: tuple[int, ...], limit: int | None) -> tuple[int, ...]:
    return values if limit is None else tuple(sorted({min(value, limit) for value in values}))
