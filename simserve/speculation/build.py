"""``engine.speculation`` of a scenario to what runs it: acceptance, policy and step times."""

from __future__ import annotations

import numpy as np

from simserve.errors import ScenarioError
from simserve.kv_cache import Allocator
from simserve.model_spec import load_model_spec
from simserve.scenario import ChunkedEngineConfig, Scenario
from simserve.scenario.speculation_models import DraftProfileConfig, DraftRooflineConfig, SpeculationConfig
from simserve.scheduling import Limits, Scheduler
from simserve.speculation.acceptance import Acceptance
from simserve.speculation.schedulers import DraftingPool, SpeculativeChunkedScheduler, SpeculativeContinuousScheduler
from simserve.speculation.step_time import Draft, PassTime
from simserve.step_time import StepTime
from simserve.step_time.draws import ProfileDraws
from simserve.step_time.hardware import load_hardware
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import load_profile
from simserve.step_time.quality_schema import load_agreement
from simserve.step_time.roofline import RooflineStepTime


def probabilities(scenario: Scenario, speculation: SpeculationConfig) -> tuple[float, ...]:
    """α of each draft of a pass. Raises InputError for a measured file that cannot be read or has too few."""
    given, num_drafts = speculation.acceptance, speculation.draft_tokens
    if isinstance(given, int | float):
        return (float(given),) * num_drafts
    if isinstance(given, list):
        return tuple(given)
    measured = load_agreement(scenario.base_dir / given.measured).acceptance
    if len(measured) < num_drafts:
        raise ScenarioError(
            f"engine.speculation.acceptance.measured: must cover draft_tokens (got {len(measured)} positions in "
            f"{given.measured} for {num_drafts}); lower draft_tokens, or run `simserve agreement` with more"
        )
    return measured[:num_drafts]


def speculative_scheduler(
    scenario: Scenario, speculation: SpeculationConfig, limits: Limits, allocator: Allocator
) -> Scheduler:
    """The scenario's policy with speculation, over a cache that looks ahead where it is paged."""
    acceptance = Acceptance(probabilities(scenario, speculation), scenario.seed)
    pool = DraftingPool(limits, allocator, acceptance, scenario.engine.queue_order)
    if isinstance(scenario.engine, ChunkedEngineConfig):
        return SpeculativeChunkedScheduler(pool)
    return SpeculativeContinuousScheduler(pool)


def with_drafts(
    scenario: Scenario, speculation: SpeculationConfig, target: StepTime, calibration_draw: int | None
) -> StepTime:
    """The step times of passes whose target takes ``target``. Raises InputError where there is no such draft."""
    config = speculation.draft
    if isinstance(config, DraftProfileConfig):
        profile = load_profile(scenario.locate(config.profile))
        if calibration_draw is not None:  # another calibration than the target's, hence other noise
            profile = ProfileDraws(profile).draw(np.random.default_rng([calibration_draw, 1]))
        draft, cost = Draft(ProfileStepTime(profile), 1.0), f"whose steps are those of profile {profile.name}"
    elif isinstance(config, DraftRooflineConfig):
        spec = load_model_spec(scenario.locate(config.model))
        roofline = RooflineStepTime(spec, load_hardware(config.roofline), dtype=config.dtype)
        draft, cost = Draft(roofline, 1.0), f"of {spec.name}, whose steps are estimated on {config.roofline}"
    else:
        draft, cost = Draft(target, config.cost), f"each assumed to take {config.cost:g} of a step"
    return PassTime(target, draft, f"{speculation.draft_tokens} drafts per pass, {cost}{_left_out(scenario, target)}")


def _left_out(scenario: Scenario, target: StepTime) -> str:
    """What a reader must know of measured steps, which have one row of the output head for each sequence: those of
    verified drafts, all of which need one, are not in them."""
    if not isinstance(target, ProfileStepTime):
        return ""
    spec = load_model_spec(scenario.locate(scenario.model))
    share = spec.lm_head_parameters / (spec.matmul_parameters + spec.lm_head_parameters)
    return f"; measured steps lack the drafts' rows of the output head, {share:.0%} of a token's products with weights"
