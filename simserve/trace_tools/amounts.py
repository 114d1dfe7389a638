"""Times and ratios as people type them: ``90``, ``90s``, ``10min``, ``2h``, ``1d``; ``2``, ``×2``, ``x0.5``."""

from __future__ import annotations

import re

from simserve.errors import TraceError
from simserve.scenario.messages import printable

UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
MAX_RATE = 10_000.0
_AMOUNT = re.compile(r"(\d+\.?\d*|\.\d+) ?([a-z]*)", re.ASCII)


def seconds(option: str, text: str) -> float:
    """A time. Raises TraceError naming the option."""
    found = _AMOUNT.fullmatch(text.strip().lower())
    if found is None or found[2] not in UNITS or len(text) > 30:
        raise TraceError(printable(f"{option}: must be a time such as 90, 90s, 10min, 2h or 1d (got {text[:40]!r})"))
    return float(found[1]) * UNITS[found[2]]


def ratio(text: str) -> float:
    """How many times as much. Raises TraceError."""
    found = _AMOUNT.fullmatch(text.strip().lstrip("×xX").strip())
    if found is None or found[2] or len(text) > 30 or not 0 < float(found[1]) <= MAX_RATE:
        rule = f"must be how many times as many, above 0 and at most {MAX_RATE:,.0f}, such as 0.5 or ×2"
        raise TraceError(printable(f"--rate: {rule} (got {text[:40]!r})"))
    return float(found[1])
