"""Several prefills in one step: what they attend to together, and what is left when each token attends to itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simserve.request import Batch
from simserve.step_time.operators.grid import Values, bracket

LEAST_SHARE = 0.25  # of the smallest measured prefill, left where its tokens attend to themselves alone


def packed(batch: Batch) -> tuple[int, float, float]:
    """The one chunk that does the work of all: its new tokens, its context, and what that grows by per step.

    Q = Σ n_i tokens over the context C that gives as many (query, key) pairs: Q·C + Q²/2 = Σ (n_i·c_i + n_i²/2).
    Several short prompts attend to less than one long prompt, so C may lie between −Q/2 and 0.
    """
    num_tokens, squares, pairs = 0, 0, 0
    for new, context in batch.chunks:
        num_tokens += new
        squares += new * new
        pairs += new * context
    return num_tokens, (pairs + squares / 2) / num_tokens - num_tokens / 2, squares / num_tokens


def attended_pairs(num_new_tokens: Values | float, num_context_tokens: Values) -> Values:
    """(query, key) pairs of chunks, half a pair for a token and itself: q·c + q²/2."""
    pairs: Values = num_new_tokens * (num_context_tokens + num_new_tokens / 2)
    return pairs


def packed_floor(num_tokens: float, contexts: Sequence[float], values: Values, floor: Values | float) -> Values:
    """Seconds of tokens that attend to themselves alone, from those over ``contexts``: what contexts up to their number
    add, taken away for half as many (the secant is twice as long as what it extrapolates), and not below ``floor``."""
    i = max(1, min(bracket(contexts, max(num_tokens, contexts[0]))[0], len(contexts) - 1))
    slope = np.maximum(0.0, (values[i] - values[0]) / (contexts[i] - contexts[0]))
    packed_s: Values = np.maximum(floor, values[0] - slope * (contexts[0] + num_tokens / 2))
    return packed_s
