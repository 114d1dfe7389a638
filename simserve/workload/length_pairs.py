"""Prompt and output lengths of each request, alone or going together by a Gaussian copula (Sklar 1959; Nelsen 2006).

A prompt's place among all prompts is a normal score; the answer's is that score's correlate, and the answer is what its
own distribution has at that place. So both distributions stay what they are, prompts stay the very same draws, and
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
_TINY = 2.0**-54  # no place is 0 or 1, whose normal scores are infinite


class Pairs(NamedTuple):
    """Lengths request by request, and how many of each were cut to their distribution's ``max``."""

    prompts: IntColumn
    outputs: IntColumn
    cut: dict[str, int]


def length_pairs(config: GeneratedWorkload | TenantConfig, num_requests: int, draws: Draws) -> Pairs:
    """The lengths of the first ``num_requests``. ``draws`` makes the generator of a stream anew each time."""
    prompts, prompts_cut = lengths(config.prompt_tokens, num_requests, draws("prompt_tokens"))
    if not config.length_correlation:
        outputs, outputs_cut = lengths(config.output_tokens, num_requests, draws("output_tokens"))
    else:
        outputs, outputs_cut = _going_with(prompts, config, num_requests, draws)
    return Pairs(prompts, outputs, {"prompt_tokens": prompts_cut, "output_tokens": outputs_cut})


def _going_with(
    prompts: IntColumn, config: GeneratedWorkload | TenantConfig, num_requests: int, draws: Draws
) -> tuple[IntColumn, int]:
    """Outputs whose places go with the prompts'. Spearman's ρ of a Gaussian copula of parameter r is
    6/π · asin(r / 2) (Pearson 1907), exact for lengths without ties."""
    from scipy import special

    output = config.output_tokens
    if isinstance(output, ValuesLength) and num_requests % len(output.values):
        whole = num_requests + -num_requests % len(output.values)  # a list is used up before it begins again
        prompts = lengths(config.prompt_tokens, whole, draws("prompt_tokens"))[0]
    ties, others = draws("length_ties"), draws("length_pairs")
    below, upto = shares_upto(config.prompt_tokens, prompts - 1), shares_upto(config.prompt_tokens, prompts)
    places = below + ties.random(len(prompts)) * (upto - below)
    r = 2 * math.sin(math.pi / 6 * config.length_correlation)
    scores = r * special.ndtri(places.clip(_TINY, 1 - _TINY))
    scores += math.sqrt(max(0.0, 1 - r * r)) * others.standard_normal(len(prompts))
    if isinstance(output, ValuesLength):
        order = scores.reshape(-1, len(output.values)).argsort(axis=1, kind="stable")
        chosen = np.empty(order.shape, np.int64)
        np.put_along_axis(chosen, order, np.sort(np.array(output.values, np.int64))[None, :], axis=1)
        return chosen.ravel()[:num_requests], 0
    return at_shares(output, special.ndtr(scores))


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
