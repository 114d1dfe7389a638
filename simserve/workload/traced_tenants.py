"""A tenant of a mixture whose requests come from a trace of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simserve.request import IntColumn
from simserve.scenario.tenant_models import TracedTenant
from simserve.workload.content import taken
from simserve.workload.rates import FloatColumn
from simserve.workload.refusal import refusal
from simserve.workload.tenant_requests import TenantRequests, declared_maxima
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import Trace, read_trace


@dataclass(frozen=True)
class TenantTrace:
    """A tenant's trace and how many of its first requests count."""

    config: TracedTenant
    trace: Trace
    num_requests: int

    @property
    def rate_rps(self) -> float:
        """Requests per second over the trace's span, at the tenant's own rate_scale."""
        span_s = int(self.trace.arrival_ns[self.num_requests - 1]) / NS_PER_S
        return (self.num_requests - 1) / span_s * self.config.rate_scale

    def times_s(self, rate_scale: float) -> FloatColumn:
        """Arrivals at the mixture's rate; the first comes at 0."""
        scaled: FloatColumn = self.trace.arrival_ns[: self.num_requests] / (
            NS_PER_S * self.config.rate_scale * rate_scale
        )
        return scaled

    def requests(self, num_requests: int) -> TenantRequests:
        """The first so many of them, as the trace has them."""
        trace, rows = self.trace, np.arange(num_requests)
        outputs = trace.num_output_tokens[rows]
        declared, counts = declared_maxima(trace.max_output_tokens[rows], outputs, self.config.max_output_tokens)
        priority: IntColumn = trace.priority[rows]
        if self.config.priority is not None:
            priority = np.full(num_requests, self.config.priority, np.int64)
        content = None if trace.content is None else taken(trace.content, rows)
        return TenantRequests(trace.num_prompt_tokens[rows], outputs, declared, priority, content, counts)

    def notes(self) -> list[str]:
        """What was odd about the file, and what of it is not used."""
        unused = {"tenant": self.trace.tenants, "session_id": self.trace.session}
        return [
            *self.trace.notes,
            *(
                f"{self.config.trace}: {name} not used in a mixture"
                for name, told in unused.items()
                if told is not None
            ),
        ]


def tenant_trace(config: TracedTenant, base_dir: Path) -> TenantTrace:
    """A tenant's trace; its path is relative to ``base_dir``. Raises TraceError for a bad file, and for one that cannot
    be laid over others: without times, all at one time, or with turns that wait for answers."""
    path = base_dir / config.trace
    trace = read_trace(path, config.format)
    num_requests = min(config.limit or len(trace), len(trace))
    if not trace.has_times:
        raise refusal(path.name, "must have times to be a tenant's (it has none)")
    if trace.wait_ns is not None:
        raise refusal(
            path.name,
            "must have requests with times of their own to be a tenant's (got sessions whose turns wait for answers); "
            "replay it alone, as workload.trace",
        )
    if not trace.arrival_ns[num_requests - 1]:
        raise refusal(path.name, "must span some time to be a tenant's (every request arrives at once)")
    return TenantTrace(config, trace, num_requests)
