"""Chains: decodes one after the other, as a group that goes on takes them, of which the later ones are timed."""

from __future__ import annotations

import random

from calibrate.grid import Axes, Point

_LENGTH = 9  # steps before the last: on CPUs, batch 1 got faster over six to eight, others over one or two
_SPARSE_LENGTH = 3  # where nothing is known of the workload, and steps may be many times as long
_HELD_OUT_EVERY = 3


def chain_points(decode: Axes, seed: int, *, sparse: bool = False) -> list[Point]:
    """A chain at every batch size of ``decode``, over the context in the middle of its own; and some at random contexts
    that are held out. None where contexts are too short for a chain to begin. With ``sparse`` shorter ones, at every
    second batch size."""
    length, sizes = (_SPARSE_LENGTH, decode.rows[::2]) if sparse else (_LENGTH, decode.rows)
    context = decode.contexts[len(decode.contexts) // 2]
    longest = decode.contexts[-1]
    if context <= length:
        return []
    points = [Point("decode", size, 1, context, num_repeats=length) for size in sizes]
    draw = random.Random(f"chains {seed}")
    for size in sizes[::_HELD_OUT_EVERY]:
        other = draw.randint(length + 1, longest)
        if abs(other - context) > length:  # two of a size never share a step
            points.append(Point("decode", size, 1, other, held_out=True, num_repeats=length))
    return points
