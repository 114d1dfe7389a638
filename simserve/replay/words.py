"""What a server said, made fit for one line of a message or a table."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

_LONGEST = 160


def one_line(text: str) -> str:
    """Printable, on one line, and short."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= _LONGEST else words[: _LONGEST - 1] + "…"


def retry_after_s(header: str | None) -> float:
    """A Retry-After header (RFC 9110, 10.2.3: seconds or a date) in seconds from now; 0 if it is none."""
    text = (header or "").strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
