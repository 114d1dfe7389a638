"""What speculation gains by the closed form (Leviathan, Kalman, Matias; ICML 2023, theorems 3.8 and following)."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence


def mean_tokens_per_pass(probabilities: Sequence[float]) -> float:
    """Tokens that a pass gives on average where no answer ends: one of the target's, and each draft if all up to it are
    accepted. With one α for all γ that is (1 − α^(γ+1)) / (1 − α)."""
    return 1.0 + math.fsum(itertools.accumulate(probabilities, operator.mul))


def mean_speedup(probabilities: Sequence[float], cost: float) -> float:
    """Speed of an answer over the plain engine's where a pass takes γ · ``cost`` + 1 plain decode steps: where a
    step takes as long whether it computes one token for a sequence or γ + 1."""
    return mean_tokens_per_pass(probabilities) / (len(probabilities) * cost + 1.0)
