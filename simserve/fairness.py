"""Who got what of a shared engine: the figures of each tenant, and how equal they are (Jain's index)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from simserve.distributions import FloatColumn, describe
from simserve.records import CANCELLED, FINISHED, REJECTED, TIMED_OUT, RequestRecords
from simserve.request import IntColumn, Tenants

SLO_LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
Mask = npt.NDArray[np.bool_]
_ENDS = {"finished": FINISHED, "rejected": REJECTED, "cancelled": CANCELLED, "timed_out": TIMED_OUT}


def good_requests(columns: Mapping[str, FloatColumn], finished: Mask, slo: object, tenants: Tenants | None) -> Mask:
    """Finished requests that meet every SLO named, their tenant's own or else the scenario's ``slo``. One token has no
    TPOT, so it meets any."""
    good = finished.copy()
    for name in SLO_LATENCIES:
        limit = _limit(name, getattr(slo, name, None), tenants)
        if limit is not None:
            good &= ~(columns[name] > limit)
    return good


def has_limits(tenants: Tenants | None, slo: object) -> bool:
    """Whether anything is asked of anybody, by a tenant's own limits or by the scenario's ``slo``."""
    own = () if tenants is None else tenants.each
    return any(getattr(each, name, None) is not None for each in (slo, *own) for name in SLO_LATENCIES)


def _limit(name: str, common: float | None, tenants: Tenants | None) -> float | FloatColumn | None:
    """One limit for all (null: none), or a column where tenants may have limits of their own (infinite: none)."""
    if tenants is None:
        return common
    own = [getattr(tenant, name) for tenant in tenants.each]
    fallback = np.inf if common is None else common
    return np.array([fallback if limit is None else limit for limit in own], np.float64)[tenants.of]


def jain(shares: FloatColumn) -> float | None:
    """(Σx)² / (n Σx²) of Jain, Chiu and Hawe (1984): 1 when all of n get the same, 1/n when one gets all; null when
    nobody got anything."""
    largest = float(shares.max(initial=0.0))
    if largest == 0.0:
        return None
    scaled = shares / largest  # squares of tiny numbers would vanish
    return float(scaled.sum() ** 2 / (len(scaled) * (scaled**2).sum()))


def by_tenant(
    requests: RequestRecords, columns: Mapping[str, FloatColumn], good: Mask, makespan_s: float
) -> dict[str, Any]:
    """``tenants`` and ``fairness`` of ``summary.json``; nothing where requests are nobody's in particular.

    ``columns`` are the latencies of finished requests; ``good`` met every limit. Rates are over the whole run's
    ``makespan_s``, so that they add up to it.
    """
    tenants = requests.table.tenants
    if tenants is None:
        return {}
    described = {
        tenant.name: _one(requests, rows, columns, good, makespan_s)
        for tenant, rows in zip(tenants.each, _rows_of_each(tenants), strict=True)
    }
    everybody = np.ones(len(requests.table), np.bool_)
    return {"tenants": described, "fairness": fairness(requests, everybody, columns, good)}


def _rows_of_each(tenants: Tenants) -> list[npt.NDArray[np.intp]]:
    """Each tenant's requests in order, however many tenants there are, in one sort."""
    counts = np.bincount(tenants.of, minlength=len(tenants.each))
    return np.split(np.argsort(tenants.of, kind="stable"), counts.cumsum()[:-1])


def _one(
    requests: RequestRecords, rows: npt.NDArray[np.intp], columns: Mapping[str, FloatColumn], good: Mask, span_s: float
) -> dict[str, Any]:
    status = requests.status[rows]
    num_ended = {f"num_{end}": int((status == code).sum()) for end, code in _ENDS.items()}
    outputs = int(requests.num_emitted_tokens[rows][status == FINISHED].sum())
    num_good = int(good[rows].sum())

    def per_s(count: int) -> float:
        return count / span_s if span_s > 0 else 0.0

    return {
        "num_requests": len(rows),
        **num_ended,
        "output_tokens": outputs,
        "output_tokens_per_s": per_s(outputs),
        "requests_per_s": per_s(num_ended["num_finished"]),
        "goodput_rps": per_s(num_good),
        "slo_attainment": num_good / len(rows) if len(rows) else None,
        **{name: describe(column[rows]) for name, column in columns.items()},
        "num_preemptions": int(requests.num_preemptions[rows].sum()),
    }


def lowest_attainment(requests: RequestRecords, rows: Mask, good: Mask) -> float | None:
    """The share of requests within their limits of the tenant who has the lowest, among those who sent anything in
    ``rows``; null where requests are nobody's in particular."""
    tenants = requests.table.tenants
    if tenants is None or not rows.any():
        return None
    sent, within = (np.bincount(tenants.of[which], minlength=len(tenants.each)) for which in (rows, rows & good))
    return float((within[sent > 0] / sent[sent > 0]).min())


def fairness(
    requests: RequestRecords, rows: Mask, columns: Mapping[str, FloatColumn], good: Mask
) -> dict[str, float | None]:
    """Jain's index over the tenants who sent anything in ``rows``, of four things that they may care for alike; nothing
    where requests are nobody's in particular.

    ``output_tokens_per_s``: tokens got, which differ as much as what was asked; ``served_share``: output tokens got of
    those asked for; ``slo_attainment``: share of requests within their limits; ``speed``: tokens per second of waiting,
    one over the mean normalized latency. Who got no answer has 0 in all of them.
    """
    tenants = requests.table.tenants
    if tenants is None:
        return {}

    def added(which: Mask, amounts: FloatColumn | IntColumn | None = None) -> FloatColumn:
        """Σ of the amounts (by default 1) over each tenant's rows among ``which``."""
        weights = None if amounts is None else amounts[which]
        return np.bincount(tenants.of[which], weights, len(tenants.each)).astype(np.float64)

    answered = rows & (requests.status == FINISHED)
    sent, got = added(rows), added(answered, requests.num_emitted_tokens)
    latency, num_answered = added(answered, columns["normalized_latency_s"]), added(answered)
    senders = sent > 0
    shares = {
        "output_tokens_per_s": (got, np.ones_like(got)),
        "served_share": (got, added(rows, requests.table.num_output_tokens)),
        "slo_attainment": (added(rows & good), sent),
        "speed": (num_answered, latency),
    }
    ratios = {name: np.divide(a, b, out=np.zeros_like(a), where=b > 0) for name, (a, b) in shares.items()}
    return {name: jain(ratio[senders]) for name, ratio in ratios.items()}
