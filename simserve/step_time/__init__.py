"""How long one step takes: measured profiles, or a roofline for what was never measured."""

from simserve.step_time.source import StepTimeSource
from simserve.step_time.stretch import Ramp, StepTime, Stretch

__all__ = ["Ramp", "StepTime", "StepTimeSource", "Stretch"]
