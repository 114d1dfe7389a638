"""How long a calibration will take, from one request."""

from __future__ import annotations

import random
from collections.abc import Iterable

from calibrate.grid import Point
from calibrate.server.dialect import Dialect
from calibrate.server.load import Client

_PROMPT, _OUTPUT = 128, 8
_GROWTH = (
    0.1  # of an ITL per further stream: a guess between a server that gains all by batching and one that gains nothing
)


async def estimate_s(client: Client, dialect: Dialect, points: Iterable[Point], repeats: int, window: int) -> float:
    """Seconds for all ``points``, warm-up visits included: each prompt in proportion to one of 128 tokens, each window
    in proportion to the gaps of one stream."""
    rng = random.Random()
    answers = []
    for _ in range(2):
        answers += await client.together([dialect.body(_PROMPT, _OUTPUT, rng)])
    ttft_s = answers[-1].ttft_s
    itl_s = (answers[-1].times[-1] - answers[-1].times[0]) / max(1, answers[-1].counts[-1] - answers[-1].counts[0])
    return (repeats + 1) * sum(_visit_s(point, ttft_s, itl_s, window) for point in points)


def _visit_s(point: Point, ttft_s: float, itl_s: float, window: int) -> float:
    if point.phase == "prefill":
        return max(itl_s, ttft_s * point.num_new_tokens / _PROMPT)
    prompts_s = point.batch_size * max(itl_s, ttft_s * point.num_context_tokens / _PROMPT)
    return prompts_s + (window + 2) * itl_s * (1 + _GROWTH * (point.batch_size - 1))
