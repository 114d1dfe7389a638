"""How a bad trace is refused."""

from __future__ import annotations

from pathlib import Path

from simserve.errors import TraceError
from simserve.scenario.messages import printable


def refusal(where: str | Path, rule: str) -> TraceError:
    """The error ``where: rule``, on one line whatever the file's names and cells contain."""
    return TraceError(printable(f"{where}: {rule}"))
