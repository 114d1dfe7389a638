"""A profile answers for the weights that it was measured with, and for no others."""

from typing import Any

import pytest

from simserve.errors import ProfileError
from simserve.memory.schemes import parse_scheme
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import Profile
from simserve.step_time.profile_weights import measured_scheme, require_weights
from tests.profile_builders import make_profile

FP32 = make_profile()


def kept(**provenance: Any) -> Profile:
    """The profile, as if its provenance said something else."""
    return FP32.model_copy(update={"provenance": FP32.provenance.model_copy(update=provenance)})


def test_a_profile_that_names_no_scheme_was_measured_in_its_dtype() -> None:
    """Every profile made before schemes were recorded kept its weights in the type that it computed in."""
    assert measured_scheme(FP32) == parse_scheme("fp32")
    require_weights(FP32, parse_scheme("float32"), "here")


@pytest.mark.parametrize(("recorded", "asked"), [("int8", "int8"), ("int4:128", "int4"), ("nf4", "nf4:64")])
def test_a_profile_of_quantized_weights_answers_for_its_scheme(recorded: str, asked: str) -> None:
    """The scheme counts and not how it is spelt: groups of 128 are what int4 means, of 64 what NF4 does."""
    require_weights(kept(weight_scheme=recorded), parse_scheme(asked), "here")


@pytest.mark.parametrize(
    ("recorded", "dtype", "asked", "got"),
    [
        (None, "fp32", "int8", "fp32"),
        (None, "fp32", "bf16", "fp32"),
        ("int8", "fp32", "fp32", "int8"),
        ("int4:64", "bf16", "int4", "int4:64"),
        (None, "int8", "8", "int8"),  # so many bits are no scheme that anyone could have measured
        (None, "mxfp6", "fp16", "mxfp6"),  # imported from elsewhere: a type without a name here
    ],
)
def test_other_weights_are_refused_with_the_command_that_would_measure_them(
    recorded: str | None, dtype: str, asked: str, got: str
) -> None:
    """One sentence: place, rule, what was measured, and both remedies. Times are never scaled."""
    option = "--dtype" if asked in ("fp32", "fp16", "bf16") else "--weights"
    with pytest.raises(ProfileError) as caught:
        require_weights(kept(weight_scheme=recorded, dtype=dtype), parse_scheme(asked), "here.json")
    assert str(caught.value) == (
        f"here.json: weights: must be measured with weights in {asked} (got {got}); "
        f"run `simserve calibrate --model tiny {option} {asked}`, or take a roofline"
    )


@pytest.mark.parametrize(
    ("scheme", "words"), [(None, "fp32"), ("fp32", "fp32"), ("int8", "fp32, weights in int8")], ids=str
)
def test_step_times_say_which_weights_were_measured(scheme: str | None, words: str) -> None:
    """The note beside every result that used the profile."""
    assert f": tiny, {words}, sdpa attention, 1 thread, " in ProfileStepTime(kept(weight_scheme=scheme)).source.note
