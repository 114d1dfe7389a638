"""Step times against physics and against one another."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from calibrate.importers.laws import DecodeLaw, fit_decode
from simserve.errors import ProfileError
from simserve.model_spec import ModelSpec, causal_pairs, dtype_bytes
from simserve.step_time.hardware import HARDWARE, Hardware
from simserve.step_time.source import MeasuredPoint

NOISE = 0.05  # a time may fall by this share where more is computed
OUTLIER = 0.10  # a point may differ by this share from its neighbours of like KV load
_LIKE_LOAD = 0.10
_LAW_HOLDS = 0.05  # mean error up to which the law may translate between unequal batches


def hardware_of(device_name: str) -> Hardware | None:
    """The entry whose chip a device's own name mentions, or ``None``."""
    words = device_name.lower().replace(" ", "")
    chips = {"h200": "h200-sxm", "h100": "h100-sxm", "a100": "a100-sxm", "4090": "rtx-4090", "l40s": "l40s"}
    return next((HARDWARE[name] for chip, name in chips.items() if chip in words), None)


def repeated(points: Sequence[MeasuredPoint]) -> Iterator[str]:
    """Rows that hold the very same step and time as an earlier one."""
    count = len(points) - len(set(points))
    if count:
        yield f"{count} of {len(points)} rows repeat an earlier one, time included"


def beyond_the_chip(
    points: Sequence[MeasuredPoint], spec: ModelSpec, hardware: Hardware, dtype: str, tensor_parallel: int
) -> Iterator[str]:
    """Steps that would need more FLOP/s than the chip's peak, or more bytes/s than its bandwidth: the weights once,
    and the cache at one byte a number, which is the least that any engine keeps."""
    peak = hardware.peak_flops.get(dtype)
    weights = (spec.matmul_parameters + spec.lm_head_parameters) * dtype_bytes(dtype) / tensor_parallel
    for p in points:
        pairs = causal_pairs(p.num_new_tokens, p.num_context_tokens)
        tokens = p.batch_size * p.num_new_tokens
        flops = spec.matmul_flops(tokens, p.batch_size) + spec.attention_flops(p.batch_size * pairs)
        rate = flops / p.seconds / tensor_parallel
        if peak is not None and rate > peak:
            yield f"{words(p)}: needs {rate / 1e12:,.0f} TFLOP/s, and {hardware.title} peaks at {peak / 1e12:,.0f}"
        cache = spec.kv_bytes_per_token("fp8") * p.batch_size * p.num_context_tokens / tensor_parallel
        rate = (weights + cache) / p.seconds
        if rate > hardware.bandwidth_bytes_per_s:
            limit = hardware.bandwidth_bytes_per_s / 1e12
            yield f"{words(p)}: needs {rate / 1e12:,.2f} TB/s of memory, and {hardware.title} has {limit:.2f}"


def not_growing(points: Sequence[MeasuredPoint]) -> Iterator[str]:
    """Steps that take less time than one of the same kind that computes less, beyond noise."""
    lines: dict[tuple[str, str, int], list[MeasuredPoint]] = defaultdict(list)
    for p in points:
        if p.phase == "decode":
            lines["decode", "context", p.batch_size].append(p)
            lines["decode", "batch", p.num_context_tokens].append(p)
        elif p.batch_size == 1:
            lines["prefill", "context", p.num_new_tokens].append(p)
            lines["prefill", "tokens", p.num_context_tokens].append(p)
    for (_, axis, _), line in lines.items():
        for less, more in pairwise(sorted(_medians(line), key=_size)):
            if more.seconds < (1 - NOISE) * less.seconds:
                drop = 1 - more.seconds / less.seconds
                yield f"{words(more)}: {drop:.0%} less time than with less {axis}, {words(less)}"


def outliers(points: Sequence[MeasuredPoint]) -> Iterator[str]:
    """Decodes that differ from all decodes at other contexts whose KV load (batch × context) is within a tenth, beyond
    what their batch sizes explain by the law of all points. Nothing is said where no law fits."""
    decodes = _medians([p for p in points if p.phase == "decode" and p.batch_size > 1])
    try:
        law = fit_decode(decodes)
    except ProfileError:
        return
    if law.mean_error > _LAW_HOLDS:
        return
    decodes = sorted(decodes, key=_load)
    loads = [_load(p) for p in decodes]
    for p in decodes:
        near = slice(bisect_left(loads, _load(p) / (1 + _LIKE_LOAD)), bisect_right(loads, _load(p) * (1 + _LIKE_LOAD)))
        others = [q for q in decodes[near] if q.num_context_tokens != p.num_context_tokens]
        if len(others) < 3:
            continue
        expected = [q.seconds * _at(law, p) / _at(law, q) for q in others]
        off = p.seconds / median(expected) - 1
        if abs(off) > OUTLIER and not min(expected) <= p.seconds <= max(expected):
            low, high = min(q.seconds for q in others), max(q.seconds for q in others)
            yield (
                f"{words(p)}: {off:+.0%} against its {len(others)} neighbours of like KV load, which read "
                f"{1e3 * low:.2f} to {1e3 * high:.2f} ms"
            )


def words(p: MeasuredPoint) -> str:
    """A point in words, with its time."""
    if p.phase == "decode":
        return f"decode of {p.batch_size} at {p.num_context_tokens:,} tokens, {1e3 * p.seconds:.2f} ms"
    several = f"{p.batch_size} × " if p.batch_size > 1 else ""
    over = f" over {p.num_context_tokens:,}" if p.num_context_tokens else ""
    return f"prefill of {several}{p.num_new_tokens:,} tokens{over}, {1e3 * p.seconds:.2f} ms"


def _medians(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    groups: dict[MeasuredPoint, list[float]] = defaultdict(list)
    for p in points:
        groups[MeasuredPoint(p.phase, p.batch_size, p.num_new_tokens, p.num_context_tokens, 0.0)].append(p.seconds)
    return [
        MeasuredPoint(p.phase, p.batch_size, p.num_new_tokens, p.num_context_tokens, median(seconds))
        for p, seconds in groups.items()
    ]


def _size(p: MeasuredPoint) -> tuple[int, int]:
    return p.batch_size * p.num_new_tokens, p.num_context_tokens


def _load(p: MeasuredPoint) -> int:
    return p.batch_size * p.num_context_tokens


def _at(law: DecodeLaw, p: MeasuredPoint) -> float:
    return law.at(p.batch_size, p.num_context_tokens)
