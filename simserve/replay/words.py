"""What a server said, made fit for one line of a message or a table."""

from __future__ import annotations

import json
import re
import time
from email.utils import parsedate_to_datetime

_LONGEST = 160


def one_line(text: str) -> str:
    """Printable, on one line, and short."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= _LONGEST else words[: _LONGEST - 1] + "…"


def reason_in(body: bytes) -> str:
    """Why a server refused: the message of its JSON, in any of the usual forms, else the text as it came."""
    text = body.decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return one_line(text)
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return one_line(found if isinstance(found, str) else text)


def kind_of(words: str) -> str:
    """What refusals that differ in their numbers alone have in common (the HTTP status is kept)."""
    status, colon, reason = words.partition(": ")
    return status + colon + re.sub(r"\d+", "N", reason) if status.startswith("HTTP ") else words


def retry_after_s(header: str | None) -> float:
    """A Retry-After header (RFC 9110, 10.2.3: seconds or a date) in seconds from now; 0 if it is none."""
    text = (header or "").strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
