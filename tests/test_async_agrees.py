"""Asynchronous scheduling: the real engine and the slow, obvious one agree on every record and every step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from simserve.engine import EngineOptions
from simserve.scheduling import ChunkedScheduler
from simserve.simulate import run_engine
from tests.builders import build_scheduler, skewed64
from tests.reference_async import AsyncReference
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime
from tests.strategies import Case, client_cases
from tests.test_reference_agrees import assert_all_agree

run_briefly = settings(max_examples=60, deadline=None)


def check(case: Case, fast_forward: bool = True) -> None:
    s = case.settings
    clients = replace(case.clients, timeout_ns=None, ttft_timeout_ns=None, cancel_after_ns=None)
    reference = AsyncReference(case.table, s, case.step_time, clients).run()
    scheduler = ChunkedScheduler(build_scheduler(s).pool, async_scheduling=True)
    options = EngineOptions(
        fast_forward,
        s.swap_bytes_per_s,
        async_scheduling=True,
        max_queued_requests=s.max_queued_requests,
        retry_after_ns=s.retry_after_ns,
    )
    records = run_engine(case.table, scheduler, case.step_time, options, clients)
    assert_all_agree(records, reference)


@pytest.mark.parametrize("fast_forward", [True, False], ids=["fast-forward", "step-by-step"])
@pytest.mark.parametrize("prefix_caching", [True, False], ids=["prefixes", "plain"])
@pytest.mark.parametrize("tight", [True, False], ids=["tight", "roomy"])
def test_any_workload_and_cache(tight, prefix_caching, fast_forward):
    """Open and closed loops, full queues, preemption and swapping, prompts that begin alike: the same."""

    @run_briefly
    @given(client_cases(policy="chunked", tight=tight, prefix_caching=prefix_caching))
    def agrees(case):
        check(case, fast_forward)

    agrees()


def test_the_64_real_requests():
    """Three hundred steps on the workload that real engines served, with and without room."""
    for num_blocks in (200, 20):
        s = Settings("chunked", "paged", 8, 512, 320, num_blocks=num_blocks, block_size=16)
        check(Case(skewed64(), s, ConstantStepTime(0.0123)))
