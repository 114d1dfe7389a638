"""Beyond the last measured place of an axis: one more, far away, on the slope of the upper half of what was measured.

Two last places may be close and noisy, hence the half. With the far places in the grid before it is made monotone,
whatever is extrapolated is monotone too, along every axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simserve.step_time.operators.grid import Values, half_way
from simserve.step_time.operators.packing import attended_pairs

FAR = 2.0**24  # tokens or sequences beyond the last: more than any engine is asked for


def with_far_end(axis: Sequence[float], values: Values) -> tuple[list[float], Values]:
    """``axis`` and the first axis of ``values`` with a far place, linear in the axis."""
    i, last = half_way(axis), axis[-1]
    slope = np.zeros_like(values[-1]) if len(axis) == 1 else (values[-1] - values[i]) / (last - axis[i])
    far: Values = values[-1] + np.maximum(0.0, slope) * FAR
    return [*axis, last + FAR], np.concatenate([values, far[None]])


def with_far_tokens(tokens: Sequence[float], contexts: Values, values: Values) -> tuple[list[float], Values]:
    """As ``with_far_end`` for new tokens, linear in attended pairs; ``contexts`` is the second axis of ``values``."""
    i, last = half_way(tokens), tokens[-1]
    shape = (-1, *[1] * (values.ndim - 2))
    least, most = attended_pairs(tokens[i], contexts), attended_pairs(last, contexts)
    more = attended_pairs(last + FAR, contexts) - most
    slope = np.zeros_like(values[-1]) if len(tokens) == 1 else (values[-1] - values[i]) / (most - least).reshape(shape)
    far: Values = values[-1] + np.maximum(0.0, slope) * more.reshape(shape)
    return [*tokens, last + FAR], np.concatenate([values, far[None]])
