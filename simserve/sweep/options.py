"""What the user asked of ``simserve sweep``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SweepOptions:
    """``None`` leaves a choice to the scenario's ``sweep:`` block. ``out`` is by default ``reports/<name>-sweep``;
    ``command`` is what the user typed."""

    scenario: Path
    over: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    replications: int | None = None
    warmup: str | float | None = None
    calibration_noise: bool | None = None
    early_stop: bool | None = None
    reports: str | None = None
    out: Path | None = None
    workers: int | None = None
    cluster: str | None = None
    json: bool = False
    quiet: bool = False
    command: str = ""

    def chosen(self) -> dict[str, Any]:
        """What was said on the command line, by the names of ``SweepConfig``."""
        names = ("replications", "warmup", "calibration_noise", "early_stop", "reports")
        return {name: value for name in names if (value := getattr(self, name)) is not None}
