"""Numbers as people read them: durations, counts, shares and ratios in words. Plain text, never HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NOTHING = "–"
NBSP = "\u00a0"  # a number and its unit stay on one line
_MAGNITUDES = (
    (1e6, 1.0, ""),
    (1e9, 1e6, "million"),
    (1e12, 1e9, "billion"),
    (1e15, 1e12, "trillion"),
    (1e18, 1e15, "quadrillion"),
)


def dig(summary: Mapping[str, Any], path: str) -> float | None:
    """The number at a dotted path of a summary, None where it is absent, null or not finite."""
    value: Any = summary
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def significant(value: float, digits: int = 3) -> str:
    """``value`` with so many significant digits, thousands separated, no exponent, trailing zeros kept."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them: µs, ms, s, min or h."""
    if seconds is None:
        return NOTHING
    if seconds == 0:
        return f"0{NBSP}s"
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (600.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if abs(seconds) < limit:
            return f"{significant(seconds * scale)}{NBSP}{unit}"
    return f"{significant(seconds / 3600)}{NBSP}h"


def count(value: float | None) -> str:
    """A whole number, thousands separated."""
    return NOTHING if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    """Three significant digits."""
    return NOTHING if value is None else significant(value)


def share(value: float | None) -> str:
    """A share of one as a percentage, finer where it is small, never "0 %" for something or "100 %" for less."""
    if value is None:
        return NOTHING
    percent = 100 * value
    if 0 < percent < 0.1:
        return f"<{NBSP}0.1{NBSP}%"
    if 99.9 < percent < 100:
        return f">{NBSP}99.9{NBSP}%"
    decimals = 1 if 0 < percent < 100 and percent != round(percent) else 0
    return f"{percent:.{decimals}f}{NBSP}%"


def magnitude(value: float | None) -> str:
    """A large number in words: thousand, million, billion (10⁹) and so on."""
    if value is None:
        return NOTHING
    for limit, scale, word in _MAGNITUDES:
        if abs(value) < limit:
            return f"{significant(value / scale)}{NBSP}{word}".rstrip(NBSP)
    return f"{significant(value / 1e18)}{NBSP}quintillion"


def times(ratio: float | None) -> str:
    """A ratio such as 1.62×."""
    if ratio is None:
        return NOTHING
    return f"{ratio:.2f}×" if 0.1 <= ratio < 10 else f"{significant(ratio, 2 if ratio < 0.1 else 3)}×"


def ratio(value: float | None, base: float | None) -> float | None:
    """``value / base`` where both are there and the base is positive."""
    return value / base if value is not None and base is not None and base > 0 else None


def joined(words: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def grouped(texts: Mapping[str, str], limit: int = 8) -> str:
    """``1 s with a and b; 2 s with c``: names that share a text are named together, at most ``limit`` texts.

    A single name goes without saying.
    """
    if len(texts) == 1:
        return next(iter(texts.values()))
    names = names_by_text(texts)
    parts = [f"{text} with {joined(who)}" for text, who in list(names.items())[:limit]]
    return "; ".join(parts + ["the others stand in the table"] * (len(names) > limit))


def names_by_text(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Who shares a text, in the order of the first."""
    names: dict[str, list[str]] = {}
    for name, text in texts.items():
        names.setdefault(text, []).append(name)
    return names


def plural(number_of: int, word: str, many: str | None = None) -> str:
    """``1 request``, ``2 requests``."""
    return f"{number_of:,} {word if number_of == 1 else many or word + 's'}"
