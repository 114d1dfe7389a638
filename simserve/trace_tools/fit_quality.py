"""How well a fitted generator fits: distances of one draw from the trace, beside those between two draws of it, for
nearer than that nothing can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn, Ranges, RequestTable
from simserve.scenario import GeneratedWorkload, TenantsWorkload
from simserve.trace_tools.clients import Clients
from simserve.trace_tools.fit_arrivals import Clock, cv_of, is_coarse
from simserve.trace_tools.fit_pairs import held_tokens
from simserve.trace_tools.fit_sessions import num_shrinking, session_columns
from simserve.trace_tools.measures import dispersion, ks_distance, misplaced, rank_correlation, window_sizes_s
from simserve.trace_tools.profile import NUM_WINDOWS
from simserve.workload.build import build_workload
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import UNDECLARED, Trace

FloatColumn = npt.NDArray[np.float64]
Quality = dict[str, Any]
Requests = Trace | RequestTable


def quality_of(trace: Trace, workload: dict[str, Any], clock: Clock, clients: Clients | None) -> Quality:
    """Of the whole trace, and where there are clients of each of them (``clients``, by name)."""
    model = GeneratedWorkload if clients is None else TenantsWorkload
    config = model.model_validate(workload)
    draws = [build_workload(config, seed, Path()).table for seed in (0, 1)]
    every: list[Requests] = [trace, *draws]
    curves = [_curve(each.arrival_ns, max(clock.span_ns, 1)) for each in every]
    plays = "sessions" in workload
    told = [_columns(each, clock) | (session_columns(each, clock) if plays else {}) for each in every]
    quality = _compared(told) | {
        "rate_curve": {
            "window_s": max(clock.span_ns, 1) / NS_PER_S / NUM_WINDOWS,
            "trace": curves[0].tolist(),
            "generator": curves[1].tolist(),
            "misplaced_share": misplaced(curves[0], curves[1]),
            "misplaced_by_chance": misplaced(curves[1], curves[2]),
        },
        "clock_is_coarse": is_coarse(trace.arrival_ns),
        "clock_tick_s": clock.tick_ns / NS_PER_S,
        "dispersion": _dispersions(every, clock),
        "left_out": _left_out(trace, clients, plays),
    }
    if clients is not None:
        whose = [clients.of, *(table.tenants.of for table in draws if table.tenants is not None)]
        quality["clients"] = {name: _of_client(i, every, whose, clock) for i, name in enumerate(clients.names)}
    return quality


def _of_client(i: int, every: list[Requests], whose: list[IntColumn], clock: Clock) -> Quality:
    rows = [np.flatnonzero(of == i) for of in whose]
    columns = [_columns(each, clock, own) for each, own in zip(every, rows, strict=True)]
    return {"num_requests": {"trace": len(rows[0]), "generator": len(rows[1])}} | _compared(columns)


def _columns(requests: Requests, clock: Clock, rows: IntColumn | None = None) -> dict[str, FloatColumn]:
    """What is compared; times as the trace's clock would have told them."""
    of = slice(None) if rows is None else rows
    return {
        "gap_s": clock.gaps_s(requests.arrival_ns[of]),
        "prompt_tokens": requests.num_prompt_tokens[of].astype(np.float64),
        "output_tokens": requests.num_output_tokens[of].astype(np.float64),
    }


def _compared(columns: list[dict[str, FloatColumn]]) -> Quality:
    """The trace, and two draws."""
    own, first, second = columns
    is_known = {name: all(len(each[name]) for each in columns) for name in own}
    distances = {
        name: {"trace": ks_distance(own[name], first[name]), "chance": ks_distance(first[name], second[name])}
        for name in own
        if is_known[name]
    }
    means = {
        name: {"trace": float(own[name].mean()), "generator": float(first[name].mean())}
        for name in ("prompt_tokens", "output_tokens")
        if is_known[name]
    }
    if is_known["prompt_tokens"]:
        held = [held_tokens(each["prompt_tokens"], each["output_tokens"]) for each in (own, first)]
        means["tokens_held_by_steps"] = {"trace": float(held[0].mean()), "generator": float(held[1].mean())}
    correlations = [_correlation(each) for each in (own, first)]
    return {
        "distances": distances,
        "means": means,
        "gap_cv": {"trace": cv_of(own["gap_s"]), "generator": cv_of(first["gap_s"])},
        "prompt_output_rank_correlation": dict(zip(("trace", "generator"), correlations, strict=True)),
    }


def _correlation(columns: dict[str, FloatColumn]) -> float | None:
    prompts, outputs = (columns[name].astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
    return rank_correlation(prompts, outputs) if len(prompts) else None


def _dispersions(every: list[Requests], clock: Clock) -> list[Quality]:
    """The index of dispersion of counts in windows of each size, in the trace's span."""
    times = [each.arrival_ns // clock.tick_ns * clock.tick_ns for each in every[:2]]
    found = []
    for size_s in window_sizes_s(every[0].arrival_ns, clock.tick_ns):
        of = dict(zip(("trace", "generator"), (dispersion(each, size_s, clock.span_ns) for each in times), strict=True))
        found.append({"window_s": size_s, **of})
    return found


def _curve(arrival_ns: IntColumn, span_ns: int) -> IntColumn:
    """Arrivals in even windows of the trace's span; what comes after it is in no window."""
    return np.histogram(arrival_ns, np.linspace(0, span_ns, NUM_WINDOWS + 1))[0].astype(np.int64)


def _left_out(trace: Trace, clients: Clients | None, plays: bool) -> list[str]:
    shrinking = num_shrinking(trace) if plays else 0
    known = {
        "sessions": trace.session is not None and not plays,
        f"contexts that shrink ({shrinking:,} turns)": shrinking > 0,
        "tenants": trace.tenants is not None and clients is None,
        "shared prefixes": _begin_alike(trace) if plays else trace.content is not None,
        "priorities": bool(trace.priority.any()) and (clients is None or _differ(trace.priority, clients)),
        "declared maxima": bool((trace.max_output_tokens != UNDECLARED).any())
        and _differ(trace.max_output_tokens, clients),
    }
    return [name for name, is_there in known.items() if is_there]


def _begin_alike(trace: Trace) -> bool:
    """Whether sessions are known to begin with what others begin with."""
    return isinstance(trace.content, Ranges) and trace.content.lead_tokens is not None


def _differ(column: IntColumn, clients: Clients | None) -> bool:
    """Whether a column is not one and the same for all requests, or for all of each client."""
    of = np.zeros(len(column), np.int64) if clients is None else clients.of
    first = column[np.unique(of, return_index=True)[1]]
    return bool((column != first[of]).any())
