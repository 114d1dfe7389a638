"""A tenant of a mixture whose requests come from a trace of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simserve.errors import NoTrace, ScenarioError, TraceError
from simserve.request import IntColumn, RequestTable
from simserve.scenario.messages import printable
from simserve.scenario.tenant_models import TracedTenant
from simserve.workload.content import taken
from simserve.workload.rates import FloatColumn
from simserve.workload.refusal import refusal
from simserve.workload.resample import circular_blocks, resampled
from simserve.workload.streams import Stream
from simserve.workload.tenant_requests import TenantRequests, declared_maxima
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import MAX_SPAN_S, Trace, read_trace

Draws = Callable[[Stream], np.random.Generator]


@dataclass(frozen=True)
class TenantTrace:
    """A tenant's requests, the first at 0, at its trace's own times; ``rate_rps`` is the trace's over its span, at the
    tenant's rate_scale. What clients declare is UNDECLARED where the trace does not say."""

    config: TracedTenant
    table: RequestTable
    rate_rps: float
    notes: tuple[str, ...]

    def times_s(self, rate_scale: float) -> FloatColumn:
        """Arrivals at the mixture's rate."""
        scaled: FloatColumn = self.table.arrival_ns / (NS_PER_S * self.config.rate_scale * rate_scale)
        return scaled

    def requests(self, num_requests: int) -> TenantRequests:
        """The first so many of them."""
        table, rows = self.table, np.arange(num_requests)
        outputs = table.num_output_tokens[rows]
        declared, counts = declared_maxima(table.max_output_tokens[rows], outputs, self.config.max_output_tokens)
        priority: IntColumn = table.priority[rows]
        if self.config.priority is not None:
            priority = np.full(num_requests, self.config.priority, np.int64)
        content = None if table.content is None else taken(table.content, rows)
        return TenantRequests(table.num_prompt_tokens[rows], outputs, declared, priority, content, counts)


def tenant_trace(name: str, config: TracedTenant, base_dir: Path, draws: Draws) -> TenantTrace:
    """A tenant's trace, its path relative to ``base_dir``, drawn anew from the tenant's own streams where it asks for
    that. Raises TraceError for a bad file, and for one that cannot be laid over others: without times, all at one time,
    or with turns that wait for answers; ScenarioError for blocks longer than the trace."""
    path, trace = base_dir / config.trace, own_trace(name, config, base_dir)
    num_requests = min(config.limit or len(trace), len(trace))
    _refuse_unmixable(trace, num_requests, path.name)
    rate_rps = (num_requests - 1) * NS_PER_S / int(trace.arrival_ns[num_requests - 1]) * config.rate_scale
    unused = {"tenant": trace.tenants, "session_id": trace.session}
    notes = [
        *trace.notes,
        *(f"{path.name}: {word} not used in a mixture" for word, told in unused.items() if told is not None),
    ]
    table = _first(trace, num_requests)
    if config.resample is not None:
        table = _drawn_anew(name, table, config.resample.block_requests, path.name, draws("resample"))
        blocks = f"blocks of {config.resample.block_requests:,} consecutive requests"
        again = "; a request drawn again repeats its whole prompt" if table.content else ""
        notes.append(f"tenant {name}: its trace is drawn anew in {blocks}{again}")
    return TenantTrace(config, table, rate_rps, tuple(notes))


def own_trace(name: str, config: TracedTenant, base_dir: Path) -> Trace:
    """The file of a tenant, whole. Raises TraceError for a bad one, and for none of that name."""
    try:
        return read_trace(base_dir / config.trace, config.format)
    except NoTrace as error:
        raise TraceError(printable(f"{error}; name it in workload.tenants.{name}.trace")) from None


def _refuse_unmixable(trace: Trace, num_requests: int, where: str) -> None:
    if not trace.has_times:
        raise refusal(where, "must have times to be a tenant's (it has none)")
    if trace.wait_ns is not None:
        raise refusal(
            where,
            "must have requests with times of their own to be a tenant's (got sessions whose turns wait for answers); "
            "replay it alone, as workload.trace",
        )
    if not trace.arrival_ns[num_requests - 1]:
        raise refusal(where, "must span some time to be a tenant's (every request arrives at once)")


def _first(trace: Trace, n: int) -> RequestTable:
    columns = ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority")
    content = None if trace.content is None else taken(trace.content, np.arange(n))
    return RequestTable(**{name: getattr(trace, name)[:n] for name in columns}, content=content)


def _drawn_anew(
    name: str, table: RequestTable, block_requests: int, where: str, rng: np.random.Generator
) -> RequestTable:
    if block_requests > len(table):
        raise ScenarioError(
            f"workload.tenants.{name}.resample.block_requests: must be ≤ the number of requests (got "
            f"{block_requests:,}, and {where} has {len(table):,}); about its root is usual, here "
            f"{math.isqrt(len(table)):,}"
        )
    try:
        return resampled(table, circular_blocks(len(table), block_requests, rng))
    except OverflowError:
        raise refusal(where, f"must span at most {MAX_SPAN_S:,} seconds after its resample") from None
