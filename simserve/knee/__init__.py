"""Where load breaks a scenario: saturation rate, load knee, batch knee. ``curve_knee`` is the knee of any curve."""

from simserve.knee.curve import curve_knee

__all__ = ["curve_knee"]
