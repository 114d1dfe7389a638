"""A JSON file of somebody else's making, read with care: every problem is one sentence with its place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simserve.distributions import FloatColumn
from simserve.errors import RunError
from simserve.request import IntColumn
from simserve.scenario.messages import printable, shown

MAX_BYTES = 1 << 30
LARGEST = 9e9  # seconds: nanoseconds still fit 64 bits


def read_object(path: Path) -> dict[str, Any]:
    """The one JSON object of a file. Raises RunError: unreadable, not JSON, several runs, or no object."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise refusal(path.name, f"must be at most {MAX_BYTES >> 30} GiB")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise refusal(path.name, f"cannot be read ({(error.strerror or str(error)).lower()})") from None
    except UnicodeDecodeError as error:
        raise refusal(path.name, f"must be UTF-8 text (byte {error.start:,} is not)") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        if "Extra data" in str(error) and text.lstrip().startswith("{"):
            raise refusal(path.name, "holds several runs, one after another; keep one of them") from None
        raise refusal(path.name, f"is not JSON ({str(error).splitlines()[0]})") from None
    if not isinstance(data, dict):
        raise refusal(path.name, f"must hold a JSON object (got {shown(data)})")
    return data


def refusal(where: str, rule: str) -> RunError:
    """An error whose sentence can be printed."""
    return RunError(printable(f"{where}: {rule}"))


def number(value: object, where: str) -> float:
    """A number that can be a time in seconds, or a count. Raises RunError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        raise refusal(where, f"must be a number (got {shown(value)})")
    return float(value)


def optional(data: Mapping[str, Any], key: str) -> float | None:
    """A number, or None where there is none: missing, null, infinite or text such as 'inf'."""
    value = data.get(key)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and value is not None and math.isfinite(value) else None


def numbers(values: object, where: str, count: int | None = None) -> FloatColumn:
    """A list of numbers, of a given length. Raises RunError with the place of the first that is none."""
    found = items(values, where, count)
    return np.array([number(value, f"{where}[{i}]") for i, value in enumerate(found)], np.float64)


def lengths(values: object, where: str, count: int) -> IntColumn:
    """A list of whole numbers ≥ 0. Raises RunError."""
    found = numbers(values, where, count)
    wrong = np.flatnonzero((found < 0) | (found != np.rint(found)) | (found > 2**31))
    if len(wrong):
        raise refusal(f"{where}[{wrong[0]}]", f"must be a number of tokens (got {found[wrong[0]]:g})")
    return found.astype(np.int64)


def items(values: object, where: str, count: int | None = None) -> Sequence[Any]:
    """A list, of a given length. Raises RunError."""
    if not isinstance(values, list):
        raise refusal(where, f"must be a list (got {shown(values)})")
    if count is not None and len(values) != count:
        raise refusal(where, f"must have an entry per request, {count} (got {len(values)})")
    return values


def section(data: object, where: str) -> Mapping[str, Any]:
    """A JSON object. Raises RunError."""
    if not isinstance(data, dict):
        raise refusal(where, f"must be an object (got {shown(data)})")
    return data
