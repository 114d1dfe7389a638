"""Which weights a profile was measured with, and whether they are those that a scenario asks for."""

from __future__ import annotations

from simserve.errors import FootprintError, ProfileError
from simserve.memory.schemes import WeightScheme, parse_scheme
from simserve.step_time.profile_schema import Profile

_DTYPES = ("fp32", "fp16", "bf16")  # not quantized: the whole model in that type


def measured_scheme(profile: Profile) -> WeightScheme | None:
    """How the weights were kept while the steps were timed: as the provenance says, else in its ``dtype``. None where
    that is no scheme that is known here, as the dtype of an imported profile may not be."""
    made = profile.provenance
    try:
        return parse_scheme(made.weight_scheme or made.dtype)
    except FootprintError:
        return None


def require_weights(profile: Profile, wanted: WeightScheme, where: str) -> None:
    """Raise ``ProfileError`` unless the steps of ``profile`` were timed with weights in the scheme ``wanted``: what
    other weights would take is measured, or estimated by a roofline, and never scaled from these."""
    if measured_scheme(profile) == wanted:
        return
    made = profile.provenance
    option = "--dtype" if wanted.name in _DTYPES else "--weights"
    raise ProfileError(
        f"{where}: weights: must be measured with weights in {wanted.name} (got {made.weight_scheme or made.dtype}); "
        f"run `simserve calibrate --model {made.model} {option} {wanted.name}`, or take a roofline"
    )
