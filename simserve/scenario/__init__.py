"""Scenario files: what to simulate, read strictly and explained in one sentence when wrong."""

from simserve.scenario.client_models import CancelConfig, ClientsConfig, RetryConfig, ThinkTimeConfig
from simserve.scenario.engine_models import (
    CacheConfig,
    ChunkedEngineConfig,
    ContiguousCacheConfig,
    ContinuousEngineConfig,
    EngineConfig,
    KvCacheConfig,
    NoCacheConfig,
    PagedCacheConfig,
    StaticEngineConfig,
    SwapConfig,
    TransformersEngineConfig,
)
from simserve.scenario.load import load_scenario, parse_scenario, scenario_schema
from simserve.scenario.models import Scenario
from simserve.scenario.slo_models import SloConfig
from simserve.scenario.step_time_models import (
    OperatorsStepTimeConfig,
    ProfileStepTimeConfig,
    RooflineStepTimeConfig,
    StepTimeConfig,
)
from simserve.scenario.trace_models import ResampleConfig
from simserve.scenario.workload_models import (
    GeneratedWorkload,
    TenantsWorkload,
    TraceWorkload,
    WorkloadConfig,
)

__all__ = [
    "CacheConfig",
    "CancelConfig",
    "ChunkedEngineConfig",
    "ClientsConfig",
    "ContiguousCacheConfig",
    "ContinuousEngineConfig",
    "EngineConfig",
    "GeneratedWorkload",
    "KvCacheConfig",
    "NoCacheConfig",
    "OperatorsStepTimeConfig",
    "PagedCacheConfig",
    "ProfileStepTimeConfig",
    "ResampleConfig",
    "RetryConfig",
    "RooflineStepTimeConfig",
    "Scenario",
    "SloConfig",
    "StaticEngineConfig",
    "StepTimeConfig",
    "SwapConfig",
    "TenantsWorkload",
    "ThinkTimeConfig",
    "TraceWorkload",
    "TransformersEngineConfig",
    "WorkloadConfig",
    "load_scenario",
    "parse_scenario",
    "scenario_schema",
]
