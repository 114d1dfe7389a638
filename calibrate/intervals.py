"""Intervals of the measured medians: within them another run of the same calibration would find its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.step_time.draws import ProfileDraws
from simserve.step_time.profile_schema import content_digest, parse_profile

_NUM_DRAWS = 400
_PERCENTILES = (2.5, 97.5)


def add_intervals(content: dict[str, Any], name: str) -> None:
    """Put ``low_s`` and ``high_s`` into every row of the tables of a profile's JSON: percentiles over draws, which hold
    the noise within the run and between runs."""
    profile = parse_profile({**content, "digest": content_digest(content)}, name)
    draws = ProfileDraws(profile)
    rng = np.random.default_rng(0)
    drawn = [draws.draw(rng) for _ in range(_NUM_DRAWS)]
    for phase in ("prefill", "decode"):
        tables = [getattr(profile, phase) for profile in drawn]
        for index, row in enumerate(content[phase]["rows"]):
            _put_bounds(row, [table.rows[index].seconds for table in tables])
    if content.get("no_cache"):
        forwards = [profile.no_cache.seconds for profile in drawn if profile.no_cache is not None]
        _put_bounds(content["no_cache"], forwards)


def _put_bounds(row: dict[str, Any], drawn: list[tuple[float, ...]]) -> None:
    """``low_s`` and ``high_s`` beside the ``seconds`` of a row, from what each draw says of them."""
    low, high = np.percentile(np.array(drawn), _PERCENTILES, axis=0)
    row["low_s"] = [float(min(a, b)) for a, b in zip(low, row["seconds"], strict=True)]
    row["high_s"] = [float(max(a, b)) for a, b in zip(high, row["seconds"], strict=True)]
