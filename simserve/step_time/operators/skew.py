"""Decodes of unequal context: how far beyond their mean context the longest holds the kernel up.

LLMServingSim's ``skew.csv`` timed n decodes of which some are long, beside n of their mean and n of the longest, with a
prefill in the same kernel or without. The excess over the mean follows the longest, not the spread: as a share alpha of
(time at the longest − time at the mean) that depends on n alone, it predicted pure decodes of ratios left out within
2.2 % (RTX 4090) and 1.8 % (RTX PRO 6000), where the mean alone is off by 5.4 % and 3.7 %, the standard deviation in
place of the longest by 4.2 % and 3.1 %, and the shares that come with the tables by 3.5 % and 6.1 %. Beside a prefill
alpha also depends on its tokens and their context: 5.0 % and 4.7 %, against 8.4 % and 9.1 % at the mean.

Why the longest: where a kernel with a decodes left gets through A·a/(a + s) tokens a second, s for what it takes to
keep memory busy, decodes that start together take (Σ contexts + s · longest)/A, exactly and whatever the spread. So
alpha = s/(n + s), and between the n that were timed it is s that is interpolated: on the RTX 4090 32, 64 and 128
decodes say 5.4, 5.2 and 3.9, on the RTX PRO 6000 64 and 128 say 5.7 and 4.8. Fewer say nearly nothing: their contexts
are split (``splits``), so s jumps where that ends, and is not interpolated across. Pure decodes of an n left out (16 to
128) come within 1.9 % and 2.1 %; with alpha linear in the logarithm of n, 4.3 % and 3.9 %; with s and without the jump,
4.4 % and 3.9 %. Beside a prefill nothing is split: 5.7 % and 5.1 % with s, 6.9 % and 6.1 % with alpha.

The files' times are of three launches (three times those of ``attention.csv``); a share does not mind.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simserve.step_time.operators.csv_files import read_table
from simserve.step_time.operators.grid import Values

if TYPE_CHECKING:
    import pandas as pd

_SHAPE = ("n", "pc", "kp")
_ALMOST_ONE = 1 - 1e-9  # the longest decides: what keeps memory busy is then without bound
_TIMES = ("t_mean_us", "t_max_us", "t_skew_us")

Cell = tuple[int, int]  # new tokens and context of the prefill beside; (0, 0) where there is none


class SkewTable:
    """``alpha`` by number of decodes and the prefill beside them, between 0 (the mean decides) and 1 (the longest).

    Decodes alone have split contexts below ``unsplit_from`` of them; None: nothing is known of that.
    """

    def __init__(self, alphas: Mapping[Cell, Mapping[int, float]], unsplit_from: int | None = None) -> None:
        self._border = unsplit_from or 0
        self._busy = {(cell, side): by_n for cell, found in alphas.items() for side, by_n in self._sides(cell, found)}
        self._tokens = _Nearest({tokens for tokens, _ in alphas if tokens})
        self._contexts = {
            known: _Nearest({c for tokens, c in alphas if tokens == known}) for known in self._tokens.known
        }

    def alpha(
        self, num_decodes: int, num_new_tokens: int = 0, context: float = 0.0, num_rows: int | None = None
    ) -> float:
        """The share for so many decodes beside a prefill of ``num_new_tokens`` over ``context`` (none: 0), of the
        prefill measured that is nearest in ratio. What keeps memory busy is linear in the logarithm of decodes between
        those timed, and beyond them as at the nearest. ``num_rows``: decodes and what pads them, by which decodes alone
        are split."""
        cell = (0, 0)
        if num_new_tokens and self._tokens.known:
            tokens = self._tokens.to(num_new_tokens)
            cell = tokens, self._contexts[tokens].to(max(0.0, context))
        by_n = self._busy.get((cell, self._is_unsplit(cell, num_rows or num_decodes)))
        if by_n is None:
            return 0.0
        busy = by_n(math.log(num_decodes))
        return busy / (num_decodes + busy)

    def _is_unsplit(self, cell: Cell, num_decodes: int) -> bool:
        return cell != (0, 0) or num_decodes >= self._border

    def _sides(self, cell: Cell, found: Mapping[int, float]) -> Iterator[tuple[bool, _Between]]:
        """Both sides of where splitting ends; a side on which nothing was timed answers as the other does."""
        sides: dict[bool, dict[int, float]] = {False: {}, True: {}}
        for n, alpha in found.items():
            share = min(alpha, _ALMOST_ONE)
            sides[self._is_unsplit(cell, n)][n] = n * share / (1 - share)
        for side, busy in sides.items():
            yield side, _Between(busy or sides[not side])


def read_skew(path: Path, unsplit_from: int | None = None) -> SkewTable:
    """The table of a ``skew.csv``. Raises ``ProfileError`` in one sentence."""
    return fit_skew(read_table(path, (*_SHAPE, *_TIMES), (*_SHAPE, *_TIMES)), unsplit_from)


def fit_skew(rows: pd.DataFrame, unsplit_from: int | None = None) -> SkewTable:
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
    return SkewTable(alphas, unsplit_from)


def _weighted_median(values: Values, weights: Values) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


class _Between:
    """What was measured at some n, linear in the logarithm of n between them and held beyond them."""

    def __init__(self, known: Mapping[int, float]) -> None:
        counts = sorted(known)
        self._logs, self._values = [math.log(n) for n in counts], [known[n] for n in counts]

    def __call__(self, log_n: float) -> float:
        i = bisect_right(self._logs, log_n)
        if i in (0, len(self._logs)):
            return self._values[max(0, i - 1)]
        (x, y), (a, b) = self._logs[i - 1 : i + 1], self._values[i - 1 : i + 1]
        return a if log_n == x else a + (log_n - x) / (y - x) * (b - a)


class _Nearest:
    """The measured value nearest in ratio, with 16 added so that zero has one."""

    def __init__(self, known: Iterable[int]) -> None:
        self.known = sorted(known)
        self._borders = [math.sqrt((a + 16) * (b + 16)) - 16 for a, b in pairwise(self.known)]

    def to(self, value: float) -> int:
        return self.known[bisect_left(self._borders, value)]
