"""How long a calibration will take, from a few probe steps before it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calibrate.clock import Timer
from calibrate.grid import Point
from calibrate.measure import Steps
from calibrate.plan import ANCHORS_PER_ROUND, Plan
from simserve.step_time.profile_schema import ModelDimensions

_PROBE_TOKENS = 64


def estimate_s(plan: Plan, steps: Steps, timer: Timer, dimensions: ModelDimensions) -> float:
    """Seconds that ``plan`` will take if no sample is disturbed.

    A step is taken to cost a launch and a time per unit of work, from the shortest probe and one of about 64 tokens;
    work is tokens, and attended (query, key) pairs by their share of a token's multiplications. Good to a factor of
    two: that is the difference between waiting and coming back.
    """
    step_s = _probe(plan.points, steps, timer, dimensions)
    total = 0.0
    for point in plan.points:
        seconds = step_s(point)
        visits = plan.wanted_of(point, seconds)
        if point.num_repeats:
            total += seconds * (1 + visits * (1 + plan.num_repeats(point, seconds)))
            continue
        if plan.is_enough(seconds):
            total += seconds
            continue
        total += seconds * (visits + plan.num_warm_ups(None) + (visits - 1) * plan.num_warm_ups(seconds))
    if plan.anchor is not None:
        total += 2 * ANCHORS_PER_ROUND * plan.repeats * step_s(plan.anchor)
    return total


def work(point: Point, dimensions: ModelDimensions) -> float:
    """The multiplications of a step, in those of one token through the dense layers."""
    d = dimensions
    queries = d.num_attention_heads * d.head_dim
    per_layer = d.hidden_size * (2 * queries + 2 * d.num_kv_heads * d.head_dim + 3 * d.intermediate_size)
    per_pair = 2 * queries / per_layer
    new, context = point.num_new_tokens, point.num_context_tokens
    pairs = point.batch_size * new * (context + new / 2) + point.num_decodes * point.num_decode_context_tokens
    return point.batch_size * new + point.num_decodes + per_pair * pairs


def words(seconds: float) -> str:
    """A duration as people say it: rounded, in seconds or minutes."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _probe(
    points: Sequence[Point], steps: Steps, timer: Timer, dimensions: ModelDimensions
) -> Callable[[Point], float]:
    alone = [point for point in points if point.phase == "prefill" and point.in_table and point.num_context_tokens == 0]
    alone = alone or list(points)
    small = min(alone, key=lambda point: point.num_new_tokens)
    large = min(alone, key=lambda point: abs(point.num_new_tokens - _PROBE_TOKENS))
    small_s, large_s = (_time(point, steps, timer) for point in (small, large))
    more = work(large, dimensions) - work(small, dimensions)
    per_work = max(0.0, large_s - small_s) / more if more > 0 else 0.0
    launch_s = max(0.0, small_s - per_work * work(small, dimensions))
    return lambda point: launch_s + per_work * work(point, dimensions)


def _time(point: Point, steps: Steps, timer: Timer) -> float:
    """The second of two steps."""
    steps.prepare(point)
    steps.step()
    steps.prepare(point)
    return timer(steps.step).wall_s
