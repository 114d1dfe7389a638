"""``workload.tenants`` to requests: each tenant's own, drawn or of a trace, laid over each other.

A tenant's streams are known by the seed and by its name, and its i-th request is the same whatever the others send: a
mixture with one tenant more, or longer, begins with what the shorter one has of each tenant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simserve.errors import ScenarioError
from simserve.request import IntColumn, RequestTable, Tenant, Tenants
from simserve.scenario.fields import MAX_SECONDS
from simserve.scenario.tenant_models import TracedTenant
from simserve.scenario.workload_models import TenantConfig, TenantsWorkload
from simserve.workload.content import repeated_tokens
from simserve.workload.generate import arrival_times_s, mean_rate_rps, with_rate_scale
from simserve.workload.joined_content import Part, joined
from simserve.workload.prefixes import ON_TOP, in_words
from simserve.workload.rates import FloatColumn
from simserve.workload.streams import Stream, stream
from simserve.workload.tenant_requests import TenantRequests, drawn_requests
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.traced_tenants import TenantTrace, tenant_trace

_SPARE = 16  # arrivals drawn beyond the expected ones at first
_NAMED = 3
_EARLY = 0.1  # of the span: a trace that is over so much before the end is told
_COLUMNS = ("num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority")
Traces = Mapping[str, TenantTrace]


def mixture(config: TenantsWorkload, seed: int, base_dir: Path) -> tuple[RequestTable, list[str]]:
    """The first ``num_requests`` of all tenants by arrival (at equal times in the tenants' order), fewer where every
    tenant's trace ends before, and notes. Traces are relative to ``base_dir``.

    Raises ScenarioError when the last would arrive after more than 10⁹ seconds, TraceError for a bad trace.
    """
    traces = _traces(config, seed, base_dir)
    arrival_ns, of = _merged(config, seed, traces)
    n = len(of)
    columns = {name: np.empty(n, np.int64) for name in _COLUMNS}
    parts, silent, notes = [], [], [note for trace in traces.values() for note in trace.notes]
    if n < config.num_requests:
        notes.append(f"the tenants' traces end after {n:,} of {config.num_requests:,} requests (workload.num_requests)")
    for i, (name, tenant) in enumerate(config.tenants.items()):
        rows = np.flatnonzero(of == i)
        if not len(rows):
            silent.append(name)
            continue
        sent = _sent(tenant, traces.get(name), len(rows), partial(_own, seed, name))
        if name in traces:
            notes += _ended(name, traces[name], rows, arrival_ns)
        for column in _COLUMNS:
            columns[column][rows] = getattr(sent, column)
        if sent.content is not None:
            parts.append(Part(name, rows, sent.content))
        notes += [f"tenant {name}: {count:,} of {len(rows):,} {what}" for what, count in sent.counts.items() if count]
    notes += _silent(silent, len(config.tenants), n)
    each = tuple(Tenant(name, **tenant.slo.model_dump()) for name, tenant in config.tenants.items())
    table = RequestTable(arrival_ns, **columns, content=joined(parts, n), tenants=Tenants(each, of))
    are_declared = not any(part.tenant in traces for part in parts)
    return table, notes + _of_content(table, are_declared)


def total_rate_rps(config: TenantsWorkload, base_dir: Path) -> float:
    """Arrivals per second of all tenants together, in the long run (of a trace: over its span), at rate_scale 1."""
    return sum(_rates(config, _traces(config, 0, base_dir)).values())


def _traces(config: TenantsWorkload, seed: int, base_dir: Path) -> dict[str, TenantTrace]:
    """The traces of those who have one."""
    return {
        name: tenant_trace(name, tenant, base_dir, partial(_own, seed, name))
        for name, tenant in config.tenants.items()
        if isinstance(tenant, TracedTenant)
    }


def _rates(config: TenantsWorkload, traces: Traces) -> dict[str, float]:
    return {
        name: traces[name].rate_rps if isinstance(tenant, TracedTenant) else mean_rate_rps(tenant.arrivals)
        for name, tenant in config.tenants.items()
    }


def _sent(
    tenant: TenantConfig | TracedTenant,
    trace: TenantTrace | None,
    num_requests: int,
    draws: partial[np.random.Generator],
) -> TenantRequests:
    if isinstance(tenant, TracedTenant):
        assert trace is not None
        return trace.requests(num_requests)
    return drawn_requests(tenant, num_requests, draws)


def _silent(names: Sequence[str], num_tenants: int, num_requests: int) -> list[str]:
    """A note of those who send nothing; of many the first few by name."""
    if len(names) <= _NAMED:
        return [f"tenant {name} sends none of the first {num_requests:,} requests" for name in names]
    told = f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED:,} more"
    return [f"{len(names):,} of {num_tenants:,} tenants send none of the first {num_requests:,} requests: {told}"]


def _ended(name: str, trace: TenantTrace, rows: npt.NDArray[np.intp], arrival_ns: IntColumn) -> list[str]:
    """A note where a trace is over long before the others' last request: from then on there is less to do."""
    last_ns, end_ns = int(arrival_ns[rows[-1]]), int(arrival_ns[-1])
    if len(rows) < len(trace.table) or last_ns >= (1 - _EARLY) * end_ns:
        return []
    when = f"at {last_ns / NS_PER_S:,.4g} of {end_ns / NS_PER_S:,.4g} s"
    return [f"tenant {name}: its trace of {len(rows):,} requests is over {when}"]


def _of_content(table: RequestTable, are_declared: bool) -> list[str]:
    """A note of what prompts have in common, if anything is known of it; ``are_declared``: by shared_prefixes alone."""
    if table.content is None:
        return []
    if are_declared:
        return [in_words(table, ON_TOP)]
    repeated, total = repeated_tokens(table)
    return [f"{100 * repeated / total:.1f} % of the prompt tokens would be hits of an infinite prefix cache"]


def _own(seed: int, name: str, what: Stream) -> np.random.Generator:
    """A tenant's own stream: a child of the workload's, by the bytes of its name."""
    return stream(seed, what, *name.encode())


def _merged(config: TenantsWorkload, seed: int, traces: Traces) -> tuple[IntColumn, IntColumn]:
    """Arrival times of the first ``num_requests``, and the tenant of each.

    As many are drawn of each tenant as its share of the rate says; whoever has run out before the last one that is kept
    draws twice as many (the same first), until nobody has. A trace is there as a whole.
    """
    n, tenants = config.num_requests, config.tenants
    rates = _rates(config, traces)
    total = sum(rates.values())
    counts = {name: min(n, math.ceil(1.05 * n * rate / total) + _SPARE) for name, rate in rates.items()}

    def times_s(name: str) -> FloatColumn:
        if name in traces:
            return traces[name].times_s(config.rate_scale)[:n]
        return _drawn_times_s(config, name, counts[name], seed)

    drawn = {name: times_s(name) for name in tenants}
    while True:
        times = np.concatenate(list(drawn.values()))
        of = np.repeat(np.arange(len(drawn)), [len(each) for each in drawn.values()])
        first = np.argsort(times, kind="stable")[:n]
        last_s = float(times[first[-1]]) if len(first) == n else math.inf
        short = [name for name, each in drawn.items() if len(each) < n and each[-1] <= last_s and name not in traces]
        if not short:
            _refuse_decades(len(first), float(times[first[-1]]))
            return np.rint(times[first] * 1e9).astype(np.int64), of[first]
        for name in short:
            counts[name] = min(n, 2 * counts[name])
            drawn[name] = times_s(name)


def _drawn_times_s(config: TenantsWorkload, name: str, count: int, seed: int) -> FloatColumn:
    """A tenant's first arrivals: gaps from 0 on, so that not everybody begins with a request at 0."""
    tenant = config.tenants[name]
    assert isinstance(tenant, TenantConfig)
    arrivals = with_rate_scale(tenant.arrivals, config.rate_scale)
    return arrival_times_s(arrivals, count + 1, _own(seed, name, "arrivals"))[1:]


def _refuse_decades(num_requests: int, last_s: float) -> None:
    if not last_s <= MAX_SECONDS:
        raise ScenarioError(
            f"workload.tenants: the last of {num_requests:,} requests must arrive within {MAX_SECONDS:.0e} seconds "
            f"(it takes {last_s:.3g}); raise the rates"
        )
