"""What an event costs: the work is in what changed, never in how many wait or run."""

from __future__ import annotations

import pytest

from simserve.kv_cache import PagedAllocator
from tests.builders import build_allocator, build_scheduler, run_engine
from tests.reference_types import Settings
from tests.strategies import MS, table_of


@pytest.mark.parametrize("max_wait_s", [None, 3.0])
def test_an_arrival_costs_a_collecting_group_the_same_however_many_wait(monkeypatch, max_wait_s):
    """Static batching asks for the size of each request a few times in all, not once per request that arrives later."""
    n = 300
    table = table_of([i * 10 * MS for i in range(n)], [8] * n, [2] * n)
    s = Settings("static", "paged", n, 10**6, 64, num_blocks=4 * n, block_size=4, max_wait_s=max_wait_s)
    allocator = build_allocator(s)
    calls = 0
    declared_tokens = PagedAllocator.declared_tokens

    def counted(self, request):
        nonlocal calls
        calls += 1
        return declared_tokens(self, request)

    monkeypatch.setattr(PagedAllocator, "declared_tokens", counted)
    run_engine(table, s, scheduler=build_scheduler(s, allocator))
    assert calls <= 4 * n
