"""A pool of clients as ``workload.tenants``: the part of its day that is asked for, at the rate that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from simserve.errors import TraceError
from simserve.scenario.fields import MAX_REQUESTS
from simserve.trace_tools.clients import OTHERS
from simserve.trace_tools.fit_arrivals import rounded
from simserve.trace_tools.fit_lengths import Empirical, nearest_lengths
from simserve.trace_tools.servegen import PoolClient, Shares


class PoolPart(NamedTuple):
    """What of a pool is wanted: from when to when in seconds of its day, how many clients apart, and requests per
    second of all together (None: as many as the pool's)."""

    from_s: float
    to_s: float
    most: int
    rate_rps: float | None = None


class PoolTenant(NamedTuple):
    """One tenant's section of a scenario, and in numbers: requests expected, their cv, mean lengths."""

    name: str
    section: dict[str, Any]
    num_requests: float
    cv: float
    mean_prompt_tokens: float
    mean_output_tokens: float


class _Slice(NamedTuple):
    """A client's windows inside the part: how long, rate, cv; requests of each law; lengths with their weights."""

    name: str
    durations_s: list[float]
    rates: list[float]
    cvs: list[float]
    by_law: dict[str, float]
    lengths: list[tuple[float, Shares, Shares]]

    @property
    def num_requests(self) -> float:
        return float(np.dot(self.durations_s, self.rates))


def pool_tenants(pool: Sequence[PoolClient], part: PoolPart) -> list[PoolTenant]:
    """A tenant for each of the ``most`` clients who send most in the part, by that, and one for all others: their
    rates add up, and their cv² is the mean by rate, as the dispersion of the counts of independent clients is.

    A client's lengths are those of each part of the day, weighted by what it sends then. Raises TraceError where nobody
    sends anything, or more than a workload may have, and for a client whose lengths then are not known.
    """
    slices = [each for each in (_slice(client, part) for client in pool) if each.num_requests]
    if unknown := next((each.name for each in slices if not each.lengths), None):
        rule = f"must tell lengths of what it sends from {part.from_s:g} to {part.to_s:g} s (it tells none)"
        raise TraceError(f"{unknown}: {rule}; leave its two files out, or choose another --from and --to")
    total = sum(each.num_requests for each in slices)
    if not total:
        raise TraceError(f"--from, --to: must hold a request (none comes from {part.from_s:g} to {part.to_s:g} s)")
    scale = 1.0 if part.rate_rps is None else part.rate_rps * (part.to_s - part.from_s) / total
    if not 1 <= round(scale * total) <= MAX_REQUESTS:
        raise TraceError(f"--rate: must come to 1 to {MAX_REQUESTS:,} requests in all (got {scale * total:,.3g})")
    slices.sort(key=lambda each: -each.num_requests)
    chosen, others = slices[: part.most], slices[part.most :]
    return [_tenant(each, scale) for each in (*chosen, *([_together(others)] if others else []))]


def day_s(pool: Sequence[PoolClient]) -> float:
    """When the last window of a pool ends, seconds."""
    return max(_end_s(client, len(client.windows) - 1) for client in pool)


def _end_s(client: PoolClient, i: int) -> float:
    """When a window ends: where the next begins; the last is as long as the one before it."""
    windows = client.windows
    return windows[i + 1].begin_s if i + 1 < len(windows) else 2 * windows[i].begin_s - windows[i - 1].begin_s


def _slice(client: PoolClient, part: PoolPart) -> _Slice:
    found = _Slice(client.name, [], [], [], {}, [])
    weights = dict.fromkeys(client.lengths, 0.0)
    for i, window in enumerate(client.windows):
        duration_s = min(_end_s(client, i), part.to_s) - max(window.begin_s, part.from_s)
        if duration_s <= 0:
            continue
        found.durations_s.append(duration_s)
        found.rates.append(window.rate_rps)
        found.cvs.append(window.cv)
        expected = duration_s * window.rate_rps
        if expected:
            found.by_law[window.law] = found.by_law.get(window.law, 0.0) + expected
        begins = [begin for begin in weights if begin <= window.begin_s]
        if begins:
            weights[max(begins)] += expected
    for begin, (prompts, outputs) in client.lengths.items():
        if weights[begin] and len(prompts.tokens) and len(outputs.tokens):
            found.lengths.append((weights[begin], prompts, outputs))
    return found


def _together(slices: Sequence[_Slice]) -> _Slice:
    """All of a pool have the same windows."""
    if any(each.durations_s != slices[0].durations_s for each in slices):
        raise TraceError("--clients: must name all clients apart, for their windows differ; raise it")
    rates = np.array([each.rates for each in slices])
    squares = (rates * np.array([each.cvs for each in slices]) ** 2).sum(axis=0)
    total = rates.sum(axis=0)
    cvs = np.sqrt(np.divide(squares, total, out=np.ones_like(total), where=total > 0))
    by_law = {law: sum(each.by_law.get(law, 0.0) for each in slices) for law in ("gamma", "weibull")}
    lengths = [weighted for each in slices for weighted in each.lengths]
    return _Slice(OTHERS, slices[0].durations_s, total.tolist(), cvs.tolist(), by_law, lengths)


def _tenant(found: _Slice, scale: float) -> PoolTenant:
    prompts = _pooled([(weight, of) for weight, of, _ in found.lengths])
    outputs = _pooled([(weight, of) for weight, _, of in found.lengths])
    windows = []
    for duration_s, rate, cv in zip(found.durations_s, found.rates, found.cvs, strict=True):
        window = {"duration_s": rounded(duration_s), "rate_rps": rounded(scale * rate)}
        windows.append(window | {"cv": rounded(min(max(cv, 0.001), 100.0))} if rate else window)
    section = {
        "arrivals": {
            "process": "windows",
            "gaps": max(found.by_law, key=found.by_law.__getitem__),
            "windows": windows,
        },
        "prompt_tokens": nearest_lengths(prompts),
        "output_tokens": nearest_lengths(outputs),
    }
    expected = np.array(found.durations_s) * found.rates
    cv = float(np.sqrt(expected @ np.array(found.cvs) ** 2 / expected.sum()))
    means = [float(each.shares @ each.values) for each in (prompts, outputs)]
    return PoolTenant(found.name, section, scale * found.num_requests, cv, means[0], means[1])


def _pooled(parts: Sequence[tuple[float, Shares]]) -> Empirical:
    tokens = np.concatenate([of.tokens for _, of in parts])
    weights = np.concatenate([weight * of.shares / of.shares.sum() for weight, of in parts])
    values, place = np.unique(tokens, return_inverse=True)
    return Empirical.of(values, np.bincount(place, weights).astype(np.float64))
