"""``workload.tenants`` to requests: each tenant's own arrivals and lengths, laid over each other.

A tenant's streams are known by the seed and by its name, and its i-th request is the same whatever the others send: a
mixture with one tenant more, or longer, begins with what the shorter one has of each tenant.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from simserve.errors import ScenarioError
from simserve.request import IntColumn, Ranges, RequestTable, Tenant, Tenants
from simserve.scenario.fields import MAX_SECONDS
from simserve.scenario.workload_models import TenantConfig, TenantsWorkload
from simserve.workload.generate import arrival_times_s, mean_rate_rps, with_rate_scale
from simserve.workload.length_pairs import length_pairs
from simserve.workload.prefixes import ON_TOP, drawn_prefixes, in_words, placed
from simserve.workload.rates import FloatColumn
from simserve.workload.streams import Stream, stream

_SPARE = 16  # arrivals drawn beyond the expected ones at first


def mixture(config: TenantsWorkload, seed: int) -> tuple[RequestTable, list[str]]:
    """The first ``num_requests`` of all tenants by arrival (at equal times in the tenants' order), and notes.

    Raises ScenarioError when the last would arrive after more than 10⁹ seconds.
    """
    arrival_ns, of = _merged(config, seed)
    prompts, outputs, declared, priority = (np.empty(len(of), np.int64) for _ in range(4))
    begun, notes = Ranges(np.zeros_like(of), np.zeros_like(of)), []
    for i, (name, tenant) in enumerate(config.tenants.items()):
        rows = np.flatnonzero(of == i)
        if not len(rows):
            notes.append(f"tenant {name} sends none of the first {len(of):,} requests")
            continue
        prompts[rows], outputs[rows], cut = length_pairs(tenant, len(rows), partial(_own, seed, name))
        if tenant.shared_prefixes:
            drawn = drawn_prefixes(tenant.shared_prefixes, len(rows), _own(seed, name, "shared_prefixes"))
            begun = placed(begun, rows, drawn)
            prompts[rows] += drawn.num_tokens
        declared[rows], raised = _declared(tenant, outputs[rows])
        priority[rows] = tenant.priority
        counts = {f"{what} were cut to the distribution's max": count for what, count in cut.items()}
        counts["declared maxima were below the true output length: raised to it"] = raised
        notes += [f"tenant {name}: {count:,} of {len(rows):,} {what}" for what, count in counts.items() if count]
    each = tuple(Tenant(name, **tenant.slo.model_dump()) for name, tenant in config.tenants.items())
    table = RequestTable(arrival_ns, prompts, outputs, declared, priority, tenants=Tenants(each, of))
    if any(tenant.shared_prefixes for tenant in config.tenants.values()):
        table = replace(table, content=begun)
        notes.append(in_words(table, ON_TOP))
    return table, notes


def total_rate_rps(config: TenantsWorkload) -> float:
    """Arrivals per second of all tenants together, in the long run, at rate_scale 1."""
    return sum(mean_rate_rps(tenant.arrivals) for tenant in config.tenants.values())


def _own(seed: int, name: str, what: Stream) -> np.random.Generator:
    """A tenant's own stream: a child of the workload's, by the bytes of its name."""
    return stream(seed, what, *name.encode())


def _merged(config: TenantsWorkload, seed: int) -> tuple[IntColumn, IntColumn]:
    """Arrival times of the first ``num_requests``, and the tenant of each.

    As many are drawn of each tenant as its share of the rate says; whoever has run out before the last one that is kept
    draws twice as many (the same first), until nobody has.
    """
    n, tenants = config.num_requests, config.tenants
    rates = {name: mean_rate_rps(tenant.arrivals) for name, tenant in tenants.items()}
    total = total_rate_rps(config)
    counts = {name: min(n, math.ceil(1.05 * n * rate / total) + _SPARE) for name, rate in rates.items()}
    drawn = {name: _times_s(config, name, counts[name], seed) for name in tenants}
    while True:
        times = np.concatenate(list(drawn.values()))
        of = np.repeat(np.arange(len(drawn)), [len(each) for each in drawn.values()])
        first = np.argsort(times, kind="stable")[:n]
        last_s = float(times[first[-1]]) if len(first) == n else math.inf
        short = [name for name, each in drawn.items() if len(each) < n and each[-1] <= last_s]
        if not short:
            _refuse_decades(n, last_s)
            return np.rint(times[first] * 1e9).astype(np.int64), of[first]
        for name in short:
            counts[name] = min(n, 2 * counts[name])
            drawn[name] = _times_s(config, name, counts[name], seed)


def _times_s(config: TenantsWorkload, name: str, count: int, seed: int) -> FloatColumn:
    """A tenant's first arrivals: gaps from 0 on, so that not everybody begins with a request at 0."""
    arrivals = with_rate_scale(config.tenants[name].arrivals, config.rate_scale)
    return arrival_times_s(arrivals, count + 1, _own(seed, name, "arrivals"))[1:]


def _refuse_decades(num_requests: int, last_s: float) -> None:
    if not last_s <= MAX_SECONDS:
        raise ScenarioError(
            f"workload.tenants: the last of {num_requests:,} requests must arrive within {MAX_SECONDS:.0e} seconds "
            f"(it takes {last_s:.3g}); raise the rates"
        )


def _declared(tenant: TenantConfig, outputs: IntColumn) -> tuple[IntColumn, int]:
    """What a tenant's clients declare, never less than the true length, and how many were raised to it."""
    limit = int(outputs.max()) if tenant.max_output_tokens is None else tenant.max_output_tokens
    return np.maximum(outputs, limit), int((outputs > limit).sum())
