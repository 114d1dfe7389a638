"""The profiles of whole engine steps that come with the package, against their raw samples and against each other."""

from __future__ import annotations

from statistics import median

import pytest

from simserve.model_spec import load_model_spec
from simserve.request import Batch
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import Profile, load_profile, shipped_profiles

NAMES = [name for name in shipped_profiles() if load_profile(name).provenance.origin == "engine"]


@pytest.fixture(params=NAMES)
def profile(request: pytest.FixtureRequest) -> Profile:
    return load_profile(request.param)


def test_there_is_one_of_transformers_and_one_of_vllm() -> None:
    """Both engines that can be driven have a profile of the 25m model to look at."""
    sources = [load_profile(name).provenance.source or "" for name in NAMES]
    assert any(source.startswith("transformers continuous batching ") for source in sources)
    assert any(source.startswith("vLLM ") for source in sources)


def test_it_is_named_after_what_was_measured(profile: Profile) -> None:
    """``<model>-<device>-<dtype>-<engine>``, of that model, its cache's bytes those of the formula."""
    made = profile.provenance
    spec = load_model_spec(made.model)
    load_profile(profile.name, spec)
    engine = (made.source or "").split()[0].lower()
    assert profile.name == f"{spec.name}-{made.device}-{made.dtype}-{engine}"
    assert profile.kv_bytes_per_token is not None
    assert profile.kv_bytes_per_token.measured == spec.kv_bytes_per_token(made.dtype)
    assert made.threads == 1 and made.clock == "process_cpu"
    assert f"--engine {engine}" in made.command and "/home" not in made.command and "/tmp" not in made.command


def test_its_tables_are_the_medians_of_its_samples(profile: Profile) -> None:
    """Recomputed from the raw CPU seconds: clean samples where a point has one, else all."""
    for point in ProfileStepTime(profile).source.points:
        shape = (point.phase, point.batch_size, point.num_new_tokens, point.num_context_tokens, 0, 0, 0.0)
        mine = [sample for sample in profile.samples if sample.shape == shape and not sample.held_out]
        chosen = [sample for sample in mine if not sample.dirty] or mine
        seconds = [sample.cpu_s for sample in chosen if sample.session == 0 and not sample.anchor]
        assert point.seconds == pytest.approx(median(s for s in seconds if s is not None), rel=1e-9)


def test_its_error_on_random_steps_is_stated_and_small(profile: Profile) -> None:
    """Mixed steps, packed prompts and unequal contexts are among the steps held out."""
    error = profile.held_out
    assert error.all.mean is not None and error.all.mean <= 0.10
    assert all(kind is not None and kind.num_points >= 3 for kind in (error.mixed, error.packed, error.unequal))


def test_an_engine_step_takes_longer_than_its_bare_forward_in_the_same_library() -> None:
    """transformers' continuous batching runs the forwards that the bare profile timed, and its own work on top."""
    bare = ProfileStepTime(load_profile("25m-cpu-fp32"))
    engine = ProfileStepTime(load_profile("25m-cpu-fp32-transformers"))
    for batch in (1, 4, 8, 16):
        step = Batch(num_decodes=batch, decode_context_tokens=256 * batch)
        assert engine.ramp(step, 0).first_s > bare.ramp(step, 0).first_s
