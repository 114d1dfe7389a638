"""The batch knee of a measured profile: where a larger batch stops to pay, before any traffic is looked at."""

from __future__ import annotations

from typing import Any

from simserve.scenario import ProfileStepTimeConfig, Scenario
from simserve.step_time.knee import knee_interval
from simserve.step_time.profile_schema import Profile, load_profile


def batch_knee_of(scenario: Scenario) -> dict[str, Any] | None:
    """``batch_knee`` of ``knee.json``: the knee of the profile's batch curve, the interval of 90 % of its bootstrap
    draws and each batch's share of them; null for a roofline, which nobody measured."""
    config = scenario.step_time
    if not isinstance(config, ProfileStepTimeConfig):
        return None
    knee = knee_interval(_samples(load_profile(scenario.locate(config.profile))))
    shares = {str(batch): share for batch, share in knee.shares.items()}
    return {"value": knee.knee, "low": knee.low, "high": knee.high, "shares": shares}


def _samples(profile: Profile) -> dict[int, list[float]]:
    """Seconds of decode steps by batch size at the curve's context: undisturbed samples where there are two or more,
    all where there are fewer, the curve's own figure where there are none."""
    curve, clock = profile.batch_curve, profile.provenance.clock
    behind: dict[int, list[tuple[bool, float]]] = {point.batch_size: [] for point in curve.points}
    for sample in profile.samples:
        is_decode = sample.phase == "decode" and sample.context_spread == 0
        if is_decode and sample.num_context_tokens == curve.num_context_tokens and sample.batch_size in behind:
            behind[sample.batch_size].append((sample.dirty, sample.seconds(clock)))
    seconds = {point.batch_size: [point.seconds] for point in curve.points}
    for batch, samples in behind.items():
        clean = [each for dirty, each in samples if not dirty]
        if samples:
            seconds[batch] = clean if len(clean) > 1 else [each for _, each in samples]
    return seconds
