"""Lengths as people know them from their dashboards: some percentiles; and how prompts and answers go together."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from simserve.scenario.fields import Strict, Tokens

_PERCENTILE = re.compile(r"p(100|[0-9]{1,2}(\.[0-9]{1,6})?)", re.ASCII)

LengthCorrelation = Annotated[
    float,
    Field(
        ge=-1,
        le=1,
        description="rank correlation (Spearman's) of prompt and output lengths, by a Gaussian copula: 0 is none, "
        "above 0 long prompts get long answers; each length keeps its distribution, and the prompts are those of 0",
    ),
]


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
