"""Lengths of prompts and answers by distribution, or by percentiles as dashboards show them; and how the two go
together."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from simserve.scenario.choice import Choice
from simserve.scenario.fields import MAX_TOKENS, Strict, Tokens

_PERCENTILE = re.compile(r"p(100|[0-9]{1,2}(\.[0-9]{1,6})?)", re.ASCII)

TABLE_TOLERANCE = 0.01  # tables are written with few digits

LengthCorrelation = Annotated[
    float,
    Field(
        ge=-1,
        le=1,
        description="rank correlation (Spearman's) of prompt and output lengths, by a Gaussian copula: 0 is none, "
        "above 0 long prompts get long answers; each length keeps its distribution, and the prompts are those of 0",
    ),
]


def _a_table(table: list[list[float]]) -> list[list[float]]:
    if any(len(row) != len(table) for row in table):
        raise ValueError(
            f"must have as many columns as rows (got {len(table)} rows, {len(table[0])} columns in the first)"
        )
    for what, lines in (("row", table), ("column", [list(column) for column in zip(*table, strict=True)])):
        wrong = [(i, sum(line)) for i, line in enumerate(lines, 1) if abs(sum(line) - 1) > TABLE_TOLERANCE]
        if wrong:
            raise ValueError(f"must add up to 1 in each row and column (got {wrong[0][1]:g} in {what} {wrong[0][0]})")
    return table


LengthTable = Annotated[
    Annotated[
        list[list[Annotated[float, Field(ge=0, le=1)]]], Field(min_length=2, max_length=50), AfterValidator(_a_table)
    ]
    | None,
    Field(
        description="which answers prompts get, where a correlation is too little: a row for each class of prompts, "
        "from the shortest to the longest, as many in each, and in it the share of each class of answers, shortest "
        "first; rows and columns add up to 1; null: as length_correlation says",
    ),
]


class FixedLength(Strict):
    """Every request has the same length."""

    fixed: Tokens = Field(description="tokens")


class UniformRange(Strict):
    """Bounds of a uniform distribution over whole numbers, both included."""

    low: Tokens = Field(description="smallest length, tokens")
    high: Tokens = Field(description="largest length, tokens, included")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high must be ≥ low (got low {self.low}, high {self.high})")
        return self


class UniformLength(Strict):
    """Every whole number from low to high is equally likely."""

    uniform: UniformRange


class LognormalShape(Strict):
    """A lognormal distribution, rounded to whole tokens, at least 1."""

    mean: float = Field(
        gt=0,
        le=MAX_TOKENS,
        description="arithmetic mean in tokens of the lognormal itself, before rounding and before the cut at max",
    )
    sigma: float = Field(ge=0, le=10, description="standard deviation of the logarithm of the length")
    max: Tokens | None = Field(None, description="longer draws are cut to this length, tokens (null: not cut)")


class LognormalLength(Strict):
    """Lengths with a long tail."""

    lognormal: LognormalShape


class ValuesLength(Strict):
    """Lengths from a list, every entry equally often (sampling without replacement): as many requests as entries have
    exactly the list's total; with more requests the list starts again."""

    values: list[Tokens] = Field(min_length=1, max_length=200_000, description="lengths, tokens")
    shuffle: bool = Field(True, description="true: the seed sets the order; false: in the order listed")


class QuantilesLength(Strict):
    """A distribution by its percentiles, and between two of them evenly on a logarithmic scale."""

    quantiles: dict[str, Tokens] = Field(
        min_length=2,
        max_length=10_000,
        description="tokens at p0 (shortest), p50, p99, p99.9 …, p100 (longest)",
    )

    @model_validator(mode="after")
    def _a_distribution(self) -> Self:
        if wrong := [key for key in self.quantiles if not _PERCENTILE.fullmatch(key)]:
            raise ValueError(f"quantiles must be named p0 to p100, such as p50 or p99.9 (got {wrong[0][:40]!r})")
        table = self.table()
        if table[0][0] != 0 or table[-1][0] != 1:
            raise ValueError("quantiles must have p0 and p100, the shortest and the longest length")
        for (low, shorter), (high, longer) in pairwise(table):
            if low == high or longer < shorter:
                rule = "must differ" if low == high else "must not fall"
                raise ValueError(
                    f"quantiles {rule} (got {shorter:,} tokens at p{100 * low:g}, {longer:,} at p{100 * high:g})"
                )
        return self

    def table(self) -> list[tuple[float, int]]:
        """(share of the requests, tokens), by share."""
        return sorted((float(key[1:]) / 100, tokens) for key, tokens in self.quantiles.items())


LENGTHS = Choice(
    {
        "fixed": FixedLength,
        "uniform": UniformLength,
        "lognormal": LognormalLength,
        "values": ValuesLength,
        "quantiles": QuantilesLength,
    }
)
LengthsConfig = Annotated[
    Annotated[FixedLength, Tag("<fixed>")]
    | Annotated[UniformLength, Tag("<uniform>")]
    | Annotated[LognormalLength, Tag("<lognormal>")]
    | Annotated[ValuesLength, Tag("<values>")]
    | Annotated[QuantilesLength, Tag("<quantiles>")],
    Discriminator(LENGTHS.tag),
]
