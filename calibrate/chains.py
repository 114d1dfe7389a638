"""Chains: decodes one after the other, as a group that goes on takes them, of which the later ones are timed."""

from __future__ import annotations

import random

from calibrate.grid import Axes, Point

_LENGTH = 9  # steps before the last: on CPUs, batch 1 got faster over six to eight, others over one or two
_HELD_OUT_EVERY = 3


def chain_points(decode: Axes, seed: int) -> list[Point]:
    """A chain at every batch size of ``decode``, over the context in the middle of its own; and some at random contexts
    that are held out. None where contexts are too short for a chain to begin."""
    context = decode.contexts[len(decode.contexts) // 2]
    longest = decode.contexts[-1]
    if context <= _LENGTH:
        return []
    points = [_chain(size, context) for size in decode.rows]
    draw = random.Random(f"chains {seed}")
    for size in decode.rows[::_HELD_OUT_EVERY]:
        other = draw.randint(_LENGTH + 1, longest)
        if abs(other - context) > _LENGTH:  # two of a size never share a step
            points.append(_chain(size, other, held_out=True))
    return points


def _chain(batch_size: int, context: int, *, held_out: bool = False) -> Point:
    return Point("decode", batch_size, 1, context, held_out, num_repeats=_LENGTH)
