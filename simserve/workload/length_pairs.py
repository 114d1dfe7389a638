"""Prompt and output lengths of each request, alone or going together by a copula (Sklar 1959; Nelsen 2006): a Gaussian
one, or a table of classes.

From a prompt's place among all prompts comes the answer's place among all answers, and the answer is what its own
distribution has there. So both distributions stay what they are, prompts stay the very same draws, and
request i is the same however many follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn
from simserve.scenario.length_models import (
    FixedLength,
    LengthsConfig,
    LognormalShape,
    QuantilesLength,
    UniformLength,
    ValuesLength,
)
from simserve.scenario.workload_models import GeneratedWorkload, TenantConfig
from simserve.workload.generate import at_shares, lengths, log_mean, longest
from simserve.workload.streams import Stream

FloatColumn = npt.NDArray[np.float64]
Draws = Callable[[Stream], np.random.Generator]
_ROUNDS = 200  # of Sinkhorn's: a written table is even to its last digit already
_TINY = 2.0**-54  # no place is 0 or 1, whose normal scores are infinite


class Pairs(NamedTuple):
    """Lengths request by request, and how many of each were cut to their distribution's ``max``."""

    prompts: IntColumn
    outputs: IntColumn
    cut: dict[str, int]


def length_pairs(config: GeneratedWorkload | TenantConfig, num_requests: int, draws: Draws) -> Pairs:
    """The lengths of the first ``num_requests``. ``draws`` makes the generator of a stream anew each time."""
    prompts, prompts_cut = lengths(config.prompt_tokens, num_requests, draws("prompt_tokens"))
    if not config.length_correlation and config.length_table is None:
        outputs, outputs_cut = lengths(config.output_tokens, num_requests, draws("output_tokens"))
    else:
        outputs, outputs_cut = _going_with(prompts, config, num_requests, draws)
    return Pairs(prompts, outputs, {"prompt_tokens": prompts_cut, "output_tokens": outputs_cut})


def _going_with(
    prompts: IntColumn, config: GeneratedWorkload | TenantConfig, num_requests: int, draws: Draws
) -> tuple[IntColumn, int]:
    """Outputs whose places go with the prompts'."""
    output = config.output_tokens
    if isinstance(output, ValuesLength) and num_requests % len(output.values):
        whole = num_requests + -num_requests % len(output.values)  # a list is used up before it begins again
        prompts = lengths(config.prompt_tokens, whole, draws("prompt_tokens"))[0]
    ties, others = draws("length_ties"), draws("length_pairs")
    below, upto = shares_upto(config.prompt_tokens, prompts - 1), shares_upto(config.prompt_tokens, prompts)
    places = below + ties.random(len(prompts)) * (upto - below)
    if config.length_table is None:
        answers = _gaussian(places, config.length_correlation, others)
    else:
        answers = _checkerboard(places, even_table(np.array(config.length_table)), others)
    if isinstance(output, ValuesLength):
        order = answers.reshape(-1, len(output.values)).argsort(axis=1, kind="stable")
        chosen = np.empty(order.shape, np.int64)
        np.put_along_axis(chosen, order, np.sort(np.array(output.values, np.int64))[None, :], axis=1)
        return chosen.ravel()[:num_requests], 0
    return at_shares(output, answers)


def _gaussian(places: FloatColumn, correlation: float, rng: np.random.Generator) -> FloatColumn:
    """Places of the answers by a Gaussian copula, whose parameter r gives Spearman's ρ = 6/π · asin(r / 2) (Pearson
    1907), exact for lengths without ties."""
    from scipy import special

    r = 2 * math.sin(math.pi / 6 * correlation)
    scores = r * special.ndtri(places.clip(_TINY, 1 - _TINY))
    scores += math.sqrt(max(0.0, 1 - r * r)) * rng.standard_normal(len(places))
    answers: FloatColumn = special.ndtr(scores)
    return answers


def _checkerboard(places: FloatColumn, table: FloatColumn, rng: np.random.Generator) -> FloatColumn:
    """Places of the answers by a checkerboard copula: a class of answers by the row of the prompt's class, and evenly
    within it. One random number says both."""
    k, row = len(table), np.minimum((places * len(table)).astype(np.int64), len(table) - 1)
    upto = table.cumsum(axis=1)
    upto[:, -1] = 1.0
    coins = rng.random(len(places))
    column = np.searchsorted((upto + np.arange(k)[:, None]).ravel(), row + coins, side="right") - k * row
    column = column.clip(0, k - 1)
    share = table[row, column]
    inside = np.divide(coins - upto[row, column] + share, share, out=np.full(len(places), 0.5), where=share > 0)
    answers: FloatColumn = (column + inside.clip(0, 1)) / k
    return answers


def even_table(table: FloatColumn) -> FloatColumn:
    """The nearest table whose rows and columns add up to 1 (Sinkhorn 1964), as a copula's must; an even one where there
    is none."""
    even = table
    for _ in range(_ROUNDS):
        for axis in (1, 0, 1):
            sums = even.sum(axis=axis, keepdims=True)
            even = np.divide(even, sums, out=np.full_like(even, 1 / len(even)), where=sums > 0)
    return even


def shares_upto(config: LengthsConfig, tokens: IntColumn) -> FloatColumn:
    """The distribution function: which share of the lengths is so long or shorter, for each of ``tokens``."""
    match config:
        case FixedLength():
            return (tokens >= config.fixed).astype(np.float64)
        case UniformLength():
            low, high = config.uniform.low, config.uniform.high
            return ((tokens - low + 1) / (high - low + 1)).clip(0, 1)
        case ValuesLength():
            return np.searchsorted(np.sort(np.array(config.values, np.int64)), tokens, side="right") / len(
                config.values
            )
        case QuantilesLength():
            shares, known = np.array(config.table()).T
            found = np.interp(np.log(tokens.clip(0) + 0.5), np.log(known), shares)
            return np.where(tokens < known[0], 0.0, np.where(tokens >= known[-1], 1.0, found))
    return _lognormal_shares(config.lognormal, tokens)


def _lognormal_shares(shape: LognormalShape, tokens: IntColumn) -> FloatColumn:
    """Of a lognormal that is rounded, at least 1, and cut."""
    from scipy import special

    beyond = np.log(tokens.clip(0) + 0.5) - log_mean(shape)
    found = special.ndtr(beyond / shape.sigma) if shape.sigma else (beyond >= 0).astype(np.float64)
    return np.where(tokens < 1, 0.0, np.where(tokens >= longest(shape), 1.0, found))
