"""Where a step-time model's figures come from: what the report draws and what its badge says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One measured step: the median ``seconds`` of a forward of ``batch_size`` rows, each computing
    ``num_new_tokens`` tokens that attend to ``num_context_tokens`` cached ones."""

    phase: Phase
    batch_size: int
    num_new_tokens: int
    num_context_tokens: int
    seconds: float


@dataclass(frozen=True)
class StepTimeSource:
    """Provenance of a step-time model, as every report must show it.

    ``calibrated`` says whether steps of this very model on this very device were timed; ``holdout_mape`` is the mean
    relative error (a share, not percent) on steps that were measured but not fitted, ``None`` where nothing was;
    ``note`` is one sentence for the reader; ``points`` are the measured steps (empty for a formula); ``digest``
    is that of the profile file, ``None`` for a formula.
    """

    name: str
    kind: Literal["profile", "operators", "roofline"]
    device: str
    calibrated: bool
    holdout_mape: float | None
    note: str
    points: tuple[MeasuredPoint, ...] = ()
    digest: str | None = None
