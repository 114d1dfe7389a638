"""Policies: who computes what in the next step. Pure decisions; the clock is the engine's."""

from simserve.scheduling.chunked import ChunkedScheduler
from simserve.scheduling.continuous import ContinuousScheduler
from simserve.scheduling.no_cache import NoCacheContinuousScheduler, NoCachePool, NoCacheStaticScheduler
from simserve.scheduling.pool import Limits, Pool
from simserve.scheduling.scheduler import Scheduler
from simserve.scheduling.static import StaticScheduler
from simserve.scheduling.transformers_fifo import TransformersScheduler

__all__ = [
    "ChunkedScheduler",
    "ContinuousScheduler",
    "Limits",
    "NoCacheContinuousScheduler",
    "NoCachePool",
    "NoCacheStaticScheduler",
    "Pool",
    "Scheduler",
    "StaticScheduler",
    "TransformersScheduler",
]
