"""Where a variant's step times come from, as every document shows it."""

from __future__ import annotations

from typing import Any

from simserve.assemble import assemble
from simserve.manifest import step_time_entry
from simserve.scenario import ProfileStepTimeConfig, Scenario
from simserve.step_time.profile_schema import load_profile


def step_time_of(scenario: Scenario) -> dict[str, Any]:
    """Name, kind, device, whether it was calibrated, and its error, as in ``summary.json``."""
    return step_time_entry(assemble(scenario))


def gpus_per_replica(scenario: Scenario) -> int:
    """Devices that share a layer: the scenario's ``tensor_parallel``, or what the profile was measured on (1 where it
    does not say)."""
    config = scenario.step_time
    if isinstance(config, ProfileStepTimeConfig):
        return load_profile(scenario.locate(config.profile)).provenance.tensor_parallel or 1
    return config.tensor_parallel
