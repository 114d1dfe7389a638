"""What a calibration refuses."""

from __future__ import annotations

from simserve.errors import InputError


class CalibrationError(InputError):
    """The calibration that was asked for cannot be made here; the message is one sentence and the exit code is 2."""
