"""How long the steps of the standing decision take: ``RooflineStepTime`` and ``Stretch``, operation by operation.

The order of every floating-point operation is theirs: that is what makes the two engines agree to the nanosecond.
"""

from __future__ import annotations

import math

import numpy as np

from simserve.compiled import at
from simserve.compiled.jit import compiled
from simserve.compiled.world import World

NS_PER_S = 1_000_000_000
UNBOUNDED = 1 << 62


@compiled
def begin_stretch(w: World, now: int) -> None:
    """The decision begins now."""
    s = w.counters
    s[at.ANCHOR], s[at.STEP], s[at.NUM_RAMPS] = now, 0, 0
    _grow(w, 0, 0.0)


@compiled
def end_ns(w: World, num_steps: int) -> int:
    """End of step ``num_steps`` (from 1), in nanoseconds after the stretch began; at least 1 ns per step."""
    i = find(w, num_steps)
    count = num_steps - w.ramps[i, at.RAMP_START]
    span_s = w.ramps_s[i, at.RAMP_SUM_S] + _sum_s(w.ramps_s[i, at.RAMP_FIRST_S], w.ramps_s[i, at.RAMP_SLOPE_S], count)
    return max(num_steps, int(np.rint(NS_PER_S * span_s)))


@compiled
def steps_until(w: World, elapsed_ns: int) -> int:
    """The smallest n ≥ 1 whose ``end_ns(n)`` is at least ``elapsed_ns``."""
    n = max(1, _guess(w, elapsed_ns / NS_PER_S))
    while end_ns(w, n) < elapsed_ns:
        n += 1
    while n > 1 and end_ns(w, n - 1) >= elapsed_ns:
        n -= 1
    return n


@compiled
def find(w: World, num_steps: int) -> int:
    """Index of the ramp that holds step number ``num_steps`` (from 1)."""
    s = w.counters
    while w.ramps[s[at.NUM_RAMPS] - 1, at.RAMP_START] + w.ramps[s[at.NUM_RAMPS] - 1, at.RAMP_STEPS] < num_steps:
        extend(w)
    i = s[at.NUM_RAMPS] - 1
    while w.ramps[i, at.RAMP_START] >= num_steps and i > 0:
        i -= 1
    return int(i)


@compiled
def extend(w: World) -> None:
    """Append the ramp that follows the last one."""
    i = w.counters[at.NUM_RAMPS] - 1
    sum_s = w.ramps_s[i, at.RAMP_SUM_S] + _sum_s(
        w.ramps_s[i, at.RAMP_FIRST_S], w.ramps_s[i, at.RAMP_SLOPE_S], w.ramps[i, at.RAMP_STEPS]
    )
    _grow(w, w.ramps[i, at.RAMP_START] + w.ramps[i, at.RAMP_STEPS], sum_s)


@compiled
def _sum_s(first_s: float, slope_s: float, num_steps: int) -> float:
    return num_steps * first_s + slope_s * (num_steps * (num_steps - 1) / 2)


@compiled
def _guess(w: World, span_s: float) -> int:
    """Near the smallest n whose span is at least ``span_s``."""
    s = w.counters
    while True:
        i = s[at.NUM_RAMPS] - 1
        if w.ramps[i, at.RAMP_STEPS] >= UNBOUNDED:
            break
        if (
            w.ramps_s[i, at.RAMP_SUM_S]
            + _sum_s(w.ramps_s[i, at.RAMP_FIRST_S], w.ramps_s[i, at.RAMP_SLOPE_S], w.ramps[i, at.RAMP_STEPS])
            >= span_s
        ):
            break
        extend(w)
    while i > 0 and w.ramps_s[i, at.RAMP_SUM_S] >= span_s:
        i -= 1
    first_s, slope_s, rest_s = (
        w.ramps_s[i, at.RAMP_FIRST_S],
        w.ramps_s[i, at.RAMP_SLOPE_S],
        span_s - w.ramps_s[i, at.RAMP_SUM_S],
    )
    half, linear = slope_s / 2, first_s - slope_s / 2
    root = math.sqrt(max(0.0, linear * linear + 4 * half * rest_s))
    steps = 2 * rest_s / (linear + root) if linear + root > 0 else rest_s / first_s
    return int(w.ramps[i, at.RAMP_START] + min(w.ramps[i, at.RAMP_STEPS], math.ceil(steps)))


@compiled
def _grow(w: World, start: int, sum_s: float) -> None:
    """Append the ramp that step number ``start`` (from 0) begins."""
    s = w.counters
    first_s, slope_s, steps = _decode_ramp(w, start) if s[at.NUM_PREFILLS] == 0 else _chunk_ramp(w, start)
    i = s[at.NUM_RAMPS]
    w.ramps[i, at.RAMP_START], w.ramps[i, at.RAMP_STEPS], w.ramps_s[i, at.RAMP_SUM_S] = start, steps, sum_s
    w.ramps_s[i, at.RAMP_FIRST_S], w.ramps_s[i, at.RAMP_SLOPE_S] = first_s, slope_s
    s[at.NUM_RAMPS] += 1


@compiled
def _decode_ramp(w: World, step: int) -> tuple[float, float, int]:
    s = w.counters
    n = s[at.NUM_DECODES]
    pairs = s[at.DECODE_CONTEXT] + n * (step + 1)
    return _fixed_s(w, n, n) + pairs * w.costs[at.DECODE_PAIR_S], n * w.costs[at.DECODE_PAIR_S], UNBOUNDED


@compiled
def _chunk_ramp(w: World, step: int) -> tuple[float, float, int]:
    s = w.counters
    n = s[at.NUM_DECODES]
    tokens, pairs, pairs_per_step, cached = n, 0, 0, 0
    for i in range(s[at.NUM_PREFILLS]):
        new = w.prefills[i, at.PREFILL_TOKENS]
        context = w.prefills[i, at.PREFILL_CONTEXT] + new * step
        tokens += new
        cached += context + new
        pairs += new * context + new * (new + 1) // 2
        pairs_per_step += new * new
    compute_s, compute_slope_s = pairs * w.costs[at.PAIR_S], pairs_per_step * w.costs[at.PAIR_S]
    memory_s, memory_slope_s = cached * w.costs[at.CACHED_S], (tokens - n) * w.costs[at.CACHED_S]
    decode_pairs = s[at.DECODE_CONTEXT] + n * (step + 1)
    rest_s = _fixed_s(w, tokens, n + s[at.NUM_PREFILLS]) + decode_pairs * w.costs[at.DECODE_PAIR_S]
    slope_s = n * w.costs[at.DECODE_PAIR_S]
    if compute_s >= memory_s:
        steps = _steps_above(compute_s - memory_s, compute_slope_s - memory_slope_s)
        return rest_s + compute_s, slope_s + compute_slope_s, steps
    steps = _steps_above(memory_s - compute_s, memory_slope_s - compute_slope_s)
    return rest_s + memory_s, slope_s + memory_slope_s, steps


@compiled
def _steps_above(lead_s: float, slope_s: float) -> int:
    if slope_s >= 0:
        return UNBOUNDED
    steps = math.floor(lead_s / -slope_s)
    return UNBOUNDED if steps >= UNBOUNDED else 1 + int(steps)


@compiled
def _fixed_s(w: World, num_tokens: int, num_rows: int) -> float:
    compute_s = num_tokens * w.costs[at.TOKEN_S] + num_rows * w.costs[at.ROW_S]
    weights_s = w.costs[at.WEIGHTS_S]
    products_s = math.sqrt(compute_s * compute_s + weights_s * weights_s)
    return float(products_s + num_tokens * w.costs[at.TOKEN_LINK_S] + w.costs[at.STEP_S])
