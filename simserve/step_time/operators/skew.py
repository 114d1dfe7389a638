"""Decodes of unequal context: how far beyond their mean context the longest holds the kernel up.

LLMServingSim's ``skew.csv`` timed n decodes of which some are long, beside n of their mean and n of the longest, with a
prefill in the same kernel or without. The excess over the mean follows the longest, not the spread: as a share alpha of
(time at the longest − time at the mean) that depends on n alone, it predicted pure decodes of ratios left out within
2.2 % (RTX 4090) and 1.8 % (RTX PRO 6000), where the mean alone is off by 5.4 % and 3.7 %, the standard deviation in
place of the longest by 4.2 % and 3.1 %, and the shares that come with the tables by 3.5 % and 6.1 %. Beside a prefill
alpha also depends on its tokens and their context: 5.0 % and 4.7 %, against 8.4 % and 9.1 % at the mean.

Why the longest: where a kernel with a decodes left gets through A·a/(a + s) tokens a second, s for what it takes to
keep memory busy, decodes that start together take (Σ contexts + s · longest)/A, exactly and whatever the spread.

The files' times are of three launches (three times those of ``attention.csv``); a share does not mind.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simserve.step_time.operators.csv_files import read_table
from simserve.step_time.operators.grid import Values

if TYPE_CHECKING:
    import pandas as pd

_SHAPE = ("n", "pc", "kp")
_TIMES = ("t_mean_us", "t_max_us", "t_skew_us")

Cell = tuple[int, int]  # new tokens and context of the prefill beside; (0, 0) where there is none


class SkewTable:
    """``alpha`` by number of decodes and the prefill beside them, between 0 (the mean decides) and 1 (the longest)."""

    def __init__(self, alphas: Mapping[Cell, Mapping[int, float]]) -> None:
        self._alphas = {cell: (sorted(found), [found[n] for n in sorted(found)]) for cell, found in alphas.items()}
        self._tokens = _Nearest({tokens for tokens, _ in alphas if tokens})
        self._contexts = {
            known: _Nearest({c for tokens, c in alphas if tokens == known}) for known in self._tokens.known
        }

    def alpha(self, num_decodes: int, num_new_tokens: int = 0, context: float = 0.0) -> float:
        """The share for so many decodes beside a prefill of ``num_new_tokens`` over ``context`` (none: 0): linear in
        the logarithm of decodes, held at the ends; of the prefill measured that is nearest in ratio."""
        cell = (0, 0)
        if num_new_tokens and self._tokens.known:
            tokens = self._tokens.to(num_new_tokens)
            cell = tokens, self._contexts[tokens].to(max(0.0, context))
        counts, alphas = self._alphas.get(cell, ([1], [0.0]))
        i = bisect_right(counts, num_decodes) - 1
        if i < 0 or i + 1 == len(counts):
            return alphas[max(0, i)]
        share = math.log(num_decodes / counts[i]) / math.log(counts[i + 1] / counts[i])
        return alphas[i] + share * (alphas[i + 1] - alphas[i])


def read_skew(path: Path) -> SkewTable:
    """The table of a ``skew.csv``. Raises ``ProfileError`` in one sentence."""
    return fit_skew(read_table(path, (*_SHAPE, *_TIMES), (*_SHAPE, *_TIMES)))


def fit_skew(rows: pd.DataFrame) -> SkewTable:
    """Per decodes and prefill, the median share, each row weighing as much as its longest could matter: rows whose
    longest costs no more than the mean say nothing (the profiler leaves their alpha empty), and weigh nothing."""
    gap = rows.t_max_us - rows.t_mean_us
    rows = rows[gap > 0]
    gap = gap[gap > 0]
    rows = rows.assign(share=(rows.t_skew_us - rows.t_mean_us) / gap, weight=gap / rows.t_mean_us)
    alphas: dict[Cell, dict[int, float]] = {}
    for shape, group in rows.groupby(list(_SHAPE)):
        n, tokens, context = (int(value) for value in np.asarray(shape))
        alpha = _weighted_median(group.share.to_numpy(), group.weight.to_numpy())
        alphas.setdefault((tokens, context), {})[n] = min(1.0, max(0.0, alpha))
    return SkewTable(alphas)


def _weighted_median(values: Values, weights: Values) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


class _Nearest:
    """The measured value nearest in ratio, with 16 added so that zero has one."""

    def __init__(self, known: Iterable[int]) -> None:
        self.known = sorted(known)
        self._borders = [math.sqrt((a + 16) * (b + 16)) - 16 for a, b in pairwise(self.known)]

    def to(self, value: float) -> int:
        return self.known[bisect_left(self._borders, value)]
