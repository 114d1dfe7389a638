"""A curve through noisy points: a natural cubic smoothing spline whose roughness the points themselves choose.

Queueing latencies go as 1 / (1 − ρ), so their reciprocals are nearly straight in load: a spline of them needs few
points and little bending. Roughness is chosen by generalised cross-validation with every degree of freedom counted
1.4 times, which keeps few or correlated points from being followed (Kim and Gu, "Smoothing spline Gaussian regression:
more scalable computation via efficient approximation", JRSS B 66, 2004); the algebra is that of Green and Silverman,
Nonparametric Regression and Generalized Linear Models (1994), chapter 2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
MIN_POINTS = 5  # fewer are too few to tell noise from a bend
COUNTED = 1.4
NUM_ROUGHNESSES = 61


def smoothing_matrix(x: FloatArray, y: FloatArray) -> FloatArray:
    """The matrix that makes smooth values of any noisy ones at loads ``x``, which ascend; roughness as chosen for
    ``y`` > 0, whose noise is in proportion to it. The identity for fewer than ``MIN_POINTS``."""
    from scipy.linalg import eigh

    n = len(x)
    if n < MIN_POINTS:
        return np.eye(n)
    weights = np.diag((y.mean() / y) ** 2)
    bends, vectors = eigh(_roughness((x - x[0]) / (x[-1] - x[0])), weights)
    bends = np.maximum(bends, 0.0)
    bends[:2] = 0.0  # constants and straight lines are not rough at all
    parts = vectors.T @ weights @ y
    penalties = np.geomspace(1e-6 / bends[-1], 1e6 / bends[2], NUM_ROUGHNESSES)
    kept = 1 / (1 + penalties[:, None] * bends)
    left = ((1 - kept) * parts) ** 2
    room = n - COUNTED * kept.sum(axis=1)
    scores = np.where(room > 0, left.sum(axis=1) / np.maximum(room, 1e-12) ** 2, np.inf)
    best = kept[int(scores.argmin())]
    return np.asarray(vectors @ np.diag(best) @ vectors.T @ weights, np.float64)


def _roughness(x: FloatArray) -> FloatArray:
    """The quadratic form of values at ``x`` that is the integral of the squared second derivative of their spline."""
    h = np.diff(x)
    n = len(x)
    q, r = np.zeros((n, n - 2)), np.zeros((n - 2, n - 2))
    for j in range(n - 2):
        q[j : j + 3, j] = 1 / h[j], -1 / h[j] - 1 / h[j + 1], 1 / h[j + 1]
        r[j, j] = (h[j] + h[j + 1]) / 3
        if j:
            r[j, j - 1] = r[j - 1, j] = h[j] / 6
    return np.asarray(q @ np.linalg.solve(r, q.T), np.float64)
