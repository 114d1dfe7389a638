"""What flags were given, as numbers: with vLLM's own reading of ``32k`` (32,000) and ``32K`` (32,768)."""

from __future__ import annotations

import math
import re

from simserve.errors import InputError
from simserve.scenario.messages import printable
from simserve.vllm_flags.flags import Flags

_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT])")
_WITH_SUFFIX = ("max-model-len", "max-num-batched-tokens", "max-num-scheduled-tokens", "kv-cache-memory-bytes")
AUTO = -1


def whole(flags: Flags, name: str, at_least: int = 1) -> int | None:
    """A whole number, or None where the flag is absent. Raises InputError: no such number, or too small."""
    text = flags.given.get(name)
    if text is None:
        return None
    number = _whole(str(text).strip(), name in _WITH_SUFFIX)
    if number is None or number < at_least:
        suffix = ", such as 32768 or 32k" if name in _WITH_SUFFIX else ""
        raise InputError(printable(f"--{name}: must be a whole number ≥ {at_least}{suffix} (got {text!r})"))
    return number


def length(flags: Flags) -> int | None:
    """``--max-model-len``: a number of tokens, ``AUTO`` for ``auto`` and -1, None where absent."""
    text = str(flags.given.get("max-model-len", "")).strip().lower()
    return AUTO if text in ("auto", "-1") else whole(flags, "max-model-len")


def share(flags: Flags, name: str, above_zero: bool) -> float | None:
    """A number between 0 and 1, or None where the flag is absent. Raises InputError."""
    text = flags.given.get(name)
    if text is None:
        return None
    try:
        number = float(str(text))
    except ValueError:
        number = math.nan
    inside = 0 < number <= 1 if above_zero else 0 <= number < 1
    if not inside:
        rule = "> 0 and ≤ 1" if above_zero else "≥ 0 and < 1"
        raise InputError(printable(f"--{name}: must be a number {rule} (got {text!r})"))
    return number


def is_on(flags: Flags, name: str, default: bool) -> bool:
    """Whether a switch is on."""
    return bool(flags.given.get(name, default))


def text(flags: Flags, name: str, default: str) -> str:
    """A flag's text in lower case."""
    return str(flags.given.get(name, default)).lower()


def _whole(number: str, suffix: bool) -> int | None:
    match = _SUFFIXED.fullmatch(number) if suffix else None
    if match is None:
        return int(number) if re.fullmatch(r"[+-]?\d{1,18}", number) else None
    digits, letter = match.groups()
    if letter.isupper() and "." in digits:
        return None  # vLLM refuses 1.5K, and means 1,500 by 1.5k
    return int(float(digits) * (1024 if letter.isupper() else 1000) ** (" kmgt".index(letter.lower())))
