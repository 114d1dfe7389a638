"""A distribution of lengths as a scenario says it: one value, a lognormal where that is near, else some percentiles."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn
from simserve.scenario.length_models import LengthsConfig, LognormalLength, LognormalShape, QuantilesLength
from simserve.workload.generate import at_shares
from simserve.workload.length_pairs import shares_upto

GOOD_ENOUGH = 0.05  # KS distance up to which two numbers stand for a whole distribution …
GOOD_MEAN = 0.03  # … where they have its mean, too: tokens are what an engine works on
NEAR = 0.01  # how far a table of percentiles may be from the distribution function …
BY_CHANCE = 0.5  # … and with n lengths so much over √n, for theirs is further from the true one by chance
MAX_PERCENTILES = 100
DIGITS = 6  # of a share
FIRST_SHARES = (0.5, 0.9, 0.99, 0.999)  # what people ask for, and what keeps the tail

FloatColumn = npt.NDArray[np.float64]
Lengths = dict[str, Any]


class Empirical(NamedTuple):
    """The different lengths, and which share of all is shorter than, and which up to, each of them."""

    values: IntColumn
    below: FloatColumn
    upto: FloatColumn
    chance: float = 0.0  # how far it may be from the true one by chance

    @classmethod
    def of(cls, values: IntColumn, weights: FloatColumn, chance: float = 0.0) -> Empirical:
        """Of different lengths in order, and how much of each there is, which is above 0."""
        upto = weights.cumsum() / weights.sum()
        upto[-1] = 1.0
        return cls(values, np.concatenate([[0.0], upto[:-1]]), upto, chance)

    @property
    def shares(self) -> FloatColumn:
        return self.upto - self.below

    def errors(self, config: LengthsConfig) -> FloatColumn:
        """How far a distribution is from this one at each length, on its left and on its right."""
        left, right = shares_upto(config, self.values - 1) - self.below, shares_upto(config, self.values) - self.upto
        return np.maximum(np.abs(left), np.abs(right))


def fitted_lengths(tokens: IntColumn) -> Lengths:
    """A scenario's distribution of lengths."""
    values, counts = np.unique(tokens, return_counts=True)
    return nearest_lengths(Empirical.of(values, counts.astype(np.float64), BY_CHANCE / len(tokens) ** 0.5))


def nearest_lengths(known: Empirical) -> Lengths:
    """A scenario's distribution of lengths. A lognormal is near up to a Kolmogorov–Smirnov distance of 0.05 (or what
    chance is) and with a mean within 3 %."""
    if len(known.values) == 1:
        return {"fixed": int(known.values[0])}
    return _lognormal(known) or {"quantiles": _percentiles(known)}


def _lognormal(known: Empirical) -> Lengths | None:
    logs, longest = np.log(known.values), int(known.values[-1])
    mu = float(known.shares @ logs)
    sigma = float(known.shares @ (logs - mu) ** 2) ** 0.5
    mean = min(float(np.exp(mu + sigma**2 / 2)), float(2**31 - 1))
    shape = LognormalShape(mean=float(f"{mean:.6g}"), sigma=float(f"{min(sigma, 10.0):.6g}"), max=longest)
    config = LognormalLength(lognormal=shape)
    drawn_mean = float(at_shares(config, (np.arange(10_000) + 0.5) / 10_000)[0].mean())
    if (
        known.errors(config).max() > max(GOOD_ENOUGH, known.chance)
        or abs(drawn_mean / float(known.shares @ known.values) - 1) > GOOD_MEAN
    ):
        return None
    return config.model_dump()


def _percentiles(known: Empirical) -> dict[str, int]:
    """As few as bring the table within 0.01 of the distribution function (or what chance is), at most 100: from p0,
    p50, p90, p99, p99.9 and p100 on, more where it is furthest away. A length that many share has two: where its share
    begins and ends."""
    values, firsts = known.values, np.searchsorted(known.upto, FIRST_SHARES)
    knots = {0.0: int(values[0]), 1.0: int(values[-1])}
    knots |= {share: int(values[i]) for share, i in zip(FIRST_SHARES, firsts, strict=True)}
    while len(knots) < MAX_PERCENTILES:
        errors = known.errors(QuantilesLength(quantiles=_named(knots)))
        worst = int(errors.argmax())
        if errors[worst] <= max(NEAR, known.chance) or not (more := _more(known, worst, knots)):
            break
        knots |= more
    while len(knots) < MAX_PERCENTILES and (more := _more_for_the_mean(known, knots)):
        knots |= more
    return _named(knots)


def _more(known: Empirical, worst: int, knots: dict[float, int]) -> dict[float, int]:
    """What to put into the table where it is furthest away: that length, or where it stands there already, the one
    after it or before it, to which the table goes too soon."""
    for i in (worst, worst + 1, worst - 1):
        if 0 <= i < len(known.values):
            ends = _ends(float(known.below[i]), float(known.upto[i]), int(known.values[i]), knots)
            if new := {share: tokens for share, tokens in ends.items() if share not in knots}:
                return new
    return {}


def _more_for_the_mean(known: Empirical, knots: dict[float, int]) -> dict[float, int]:
    """Nothing where the table has the lengths' mean within 1 % (or what chance is); else one more, in the middle of
    where it has most too many or too few tokens. Even on a logarithmic scale from a to b, lengths have the mean
    (b − a) / ln(b / a)."""
    shares, tokens = np.array(sorted(knots.items())).T
    ratios = np.log(tokens[1:] / tokens[:-1])
    means = np.divide(np.diff(tokens), ratios, out=tokens[1:].copy(), where=ratios > 0)
    upto = np.concatenate([[0.0], known.upto])
    sums = np.interp(shares, upto, np.concatenate([[0.0], (known.shares * known.values).cumsum()]))
    excess = np.diff(shares) * means - np.diff(sums)
    if abs(excess.sum()) <= max(NEAR, known.chance) * sums[-1]:
        return {}
    worst = int(np.abs(excess).argmax())
    place = round(float(shares[worst] + shares[worst + 1]) / 2, DIGITS)
    middle = min(int(np.searchsorted(known.upto, place)), len(known.values) - 1)
    return {} if place in knots else {place: int(known.values[middle])}


def _ends(begin: float, end: float, tokens: int, knots: dict[float, int]) -> dict[float, int]:
    """Where in the table a length stands: at its middle, or where many share it at both ends of them; a step beside the
    end of a neighbour that stands at the very same place."""
    if end - begin <= NEAR:
        return {round((begin + end) / 2, DIGITS): tokens}
    places, step = (round(begin, DIGITS), round(end, DIGITS)), 10.0**-DIGITS
    taken = [knots.get(place, tokens) != tokens for place in places]
    return {round(places[0] + step * taken[0], DIGITS): tokens, round(places[1] - step * taken[1], DIGITS): tokens}


def _named(knots: dict[float, int]) -> dict[str, int]:
    return {f"p{100 * share:.4f}".rstrip("0").rstrip("."): tokens for share, tokens in sorted(knots.items())}
