"""Sizes with their unit: GB (10⁹) and GiB (2³⁰) are read and written as what they are, and never for one another."""

from __future__ import annotations

import re
from decimal import Decimal

SIZE_PATTERN = r"^\s*\d+(\.\d+)?\s*([KkMmGgTt][Ii]?)?[Bb]\s*$"

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B\s*", re.IGNORECASE)
_NO_SIZE = "must be a size with its unit, such as 8GiB (2³⁰ bytes each) or 8GB (10⁹ bytes each)"


def parse_size(value: object) -> object:
    """Bytes of a size such as ``8GiB`` (8 × 2³⁰) or ``8GB`` (8 × 10⁹); a whole number is bytes already.

    Raises ValueError on text that is no size; other types are left to the caller's own check.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or (match[3] and not match[2]):
        raise ValueError(_NO_SIZE)
    number, prefix, binary = match.groups()
    power = " KMGT".index(prefix.upper() or " ")
    return int(Decimal(number) * (1024 if binary else 1000) ** power)


def is_decimal(text: str) -> bool:
    """Whether a size's text counts in powers of ten: ``16GB`` does, ``16GiB`` and the name of a device do not."""
    match = _SIZE.fullmatch(text)
    return match is not None and bool(match[2]) and not match[3]


def size_text(num_bytes: int, decimal: bool = False) -> str:
    """A size for people, three digits or more, in the largest unit below it: ``6.243 GiB``, ``768 MiB``, ``12.0 KiB``;
    with ``decimal`` in powers of ten (``7.000 GB``)."""
    base, infix = (1000, "") if decimal else (1024, "i")
    for power, prefix in ((3, "G"), (2, "M"), (1, "K")):
        value = num_bytes / base**power
        if abs(value) >= 1:
            digits = 3 if power == 3 and abs(value) < 10 else max(0, 3 - len(str(int(abs(value)))))
            return f"{value:,.{digits}f} {prefix}{infix}B"
    return f"{num_bytes} B"
