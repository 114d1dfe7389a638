"""Smooth laws for points that lie on no grid, and the error of each on points that it has not seen.

Decodes: ``constant + batch^p · (per sequence + per token · context)``: the plane in batch and KV tokens, whose work per
sequence shrinks a little in large batches. It is linear in context at every batch size, so a table carries it exactly
there. Fitted by least absolute relative error, so that one disturbed point does not bend it. The exponent p is the one
that fits the points at hand best: a point that is left out has no say in it.

Prefills of n tokens, one or several in a step: ``constant + per token · Σ n + per pair · Σ (n² + 2 · n · context)`` by
least squares of the relative error: matrix products are linear in the new tokens, attention in the pairs. Where all
prompts are of one length the two cannot be told apart, and pairs cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from simserve.errors import ProfileError
from simserve.step_time.source import MeasuredPoint

Array = npt.NDArray[np.float64]
EXPONENTS = tuple(round(0.8 + 0.01 * i, 2) for i in range(21))
_LEAST_RESIDUAL = 0.01  # absolute errors below 1 % count as squares, which keeps the reweighting from stalling
_MAX_ROUNDS = 100


@dataclass(frozen=True)
class DecodeLaw:
    """Seconds of a decode step; ``mean_error`` is the mean relative error on the points that it was fitted to."""

    constant_s: float
    sequence_s: float
    token_s: float
    exponent: float
    mean_error: float

    def at(self, batch_size: float, num_context_tokens: float) -> float:
        """Seconds of one step of ``batch_size`` sequences with that context each."""
        load: float = batch_size**self.exponent
        return self.constant_s + load * (self.sequence_s + self.token_s * num_context_tokens)


@dataclass(frozen=True)
class PrefillLaw:
    """Seconds of a prefill step."""

    constant_s: float
    token_s: float
    pair_s: float

    def at(self, num_new_tokens: float, num_context_tokens: float = 0.0, batch_size: int = 1) -> float:
        """Seconds of a prefill of ``batch_size`` sequences, each of so many tokens over a cached context."""
        n = num_new_tokens
        return self.constant_s + batch_size * n * (self.token_s + self.pair_s * (n + 2 * num_context_tokens))


@dataclass(frozen=True)
class LeftOut:
    """A point that was predicted without its group; ``extrapolated`` if it lay outside all the others."""

    point: MeasuredPoint
    predicted_s: float
    extrapolated: bool

    @property
    def error(self) -> float:
        """|predicted − measured| / measured."""
        return abs(self.predicted_s / self.point.seconds - 1)


def fit_decode(points: Sequence[MeasuredPoint]) -> DecodeLaw:
    """The decode law of ``points``. Raises ``ProfileError`` unless they tell its three figures apart."""
    batch = np.array([p.batch_size for p in points], dtype=float)
    context = np.array([p.num_context_tokens for p in points], dtype=float)
    seconds = np.array([p.seconds for p in points])
    if len(set(batch)) < 2 or len(set(context)) < 2 or len(points) < 4:
        raise ProfileError(
            f"decode: at least 4 points over 2 batch sizes and 2 contexts must be given (got {len(points)} points, "
            f"{len(set(batch))} batch sizes, {len(set(context))} contexts)"
        )
    laws = [_fit_exponent(batch, context, seconds, exponent) for exponent in EXPONENTS]
    return min(laws, key=lambda law: law.mean_error)


def _fit_exponent(batch: Array, context: Array, seconds: Array, exponent: float) -> DecodeLaw:
    load = batch**exponent
    x = _least_absolute(np.column_stack([np.ones_like(load), load, load * context]) / seconds[:, None])
    predicted = x[0] + load * (x[1] + x[2] * context)
    error = float(np.mean(np.abs(predicted / seconds - 1)))
    return DecodeLaw(float(x[0]), float(x[1]), float(x[2]), exponent, error)


def _least_absolute(relative: Array) -> Array:
    """Coefficients with the least absolute error from 1, by iteratively reweighted least squares."""
    scale = np.abs(relative).max(axis=0)
    columns, weights = relative / scale, np.ones(len(relative))
    x = np.zeros(columns.shape[1])
    for _ in range(_MAX_ROUNDS):
        before = x
        x = np.linalg.lstsq(columns * weights[:, None], weights, rcond=None)[0]
        if np.allclose(x, before, rtol=1e-9, atol=0.0):
            break
        weights = 1 / np.sqrt(np.maximum(np.abs(columns @ x - 1), _LEAST_RESIDUAL))
    solution: Array = x / scale
    return solution


def fit_prefill(points: Sequence[MeasuredPoint]) -> PrefillLaw:
    """The prefill law of ``points``. Raises ``ProfileError`` for fewer than three numbers of tokens."""
    new = np.array([p.num_new_tokens for p in points], dtype=float)
    context = np.array([p.num_context_tokens for p in points], dtype=float)
    seconds = np.array([p.seconds for p in points])
    tokens = new * np.array([p.batch_size for p in points])
    if len(set(tokens)) < 3:
        raise ProfileError(f"prefill: at least 3 numbers of new tokens must be given (got {len(set(tokens))})")
    columns = np.column_stack([np.ones_like(new), tokens, tokens * (new + 2 * context)]) / seconds[:, None]
    if len(set(new + 2 * context)) < 2:
        columns = columns[:, :2]
    scale = np.abs(columns).max(axis=0)
    x = [*(np.linalg.lstsq(columns / scale, np.ones_like(new), rcond=None)[0] / scale), 0.0]
    return PrefillLaw(float(x[0]), float(x[1]), float(x[2]))


def leave_out_contexts(decodes: Sequence[MeasuredPoint]) -> list[LeftOut]:
    """Each context predicted from all the others: the two outermost are extrapolations, and flagged."""
    contexts = sorted({p.num_context_tokens for p in decodes})
    return list(chain.from_iterable(_without_context(decodes, c, c in (contexts[0], contexts[-1])) for c in contexts))


def _without_context(decodes: Sequence[MeasuredPoint], context: int, outermost: bool) -> Iterable[LeftOut]:
    law = fit_decode([p for p in decodes if p.num_context_tokens != context])
    held = (p for p in decodes if p.num_context_tokens == context)
    return [LeftOut(p, law.at(p.batch_size, context), outermost) for p in held]


def leave_out_prompts(prefills: Sequence[MeasuredPoint]) -> list[LeftOut]:
    """Each number of new tokens between the smallest and the largest predicted from all the others."""
    found: list[LeftOut] = []
    totals = sorted({tokens_of(p) for p in prefills})
    for total in totals[1:-1] if len(totals) > 3 else []:
        law = fit_prefill([p for p in prefills if tokens_of(p) != total])
        held = [p for p in prefills if tokens_of(p) == total]
        found += [LeftOut(p, law.at(p.num_new_tokens, p.num_context_tokens, p.batch_size), False) for p in held]
    return found


def tokens_of(prefill: MeasuredPoint) -> int:
    """New tokens of a prefill step, all its sequences together."""
    return prefill.batch_size * prefill.num_new_tokens
