"""The document ``compare.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from simserve.compare.block_length import block_length
from simserve.compare.curves import curves
from simserve.compare.differences import run_differences
from simserve.compare.interval import CONFIDENCE, ratio_interval, verdict
from simserve.compare.measures import (
    HIGHER_IS_BETTER,
    NEUTRAL,
    WITHOUT_INTERVAL,
    drawn_latencies,
    drawn_rates,
    measure_names,
)
from simserve.compare.pairing import Pairing
from simserve.compare.read import Run
from simserve.compare.requests import LATENCIES, Requests, read_requests
from simserve.compare.resample import NUM_DRAWS, Resamples, draw_blocks
from simserve.distributions import FloatColumn
from simserve.fairness import has_limits
from simserve.report.words import dig

SCHEMA_VERSION = 1
KIND = "simserve compare"
SEED = 20_151_989
OnPair = Callable[[str, int, int], None]


def compare_runs(a: Run, b: Run, pairing: Pairing, on_pair: OnPair | None = None) -> dict[str, Any]:
    """Everything that changed from run A to run B, for each pair of variants.

    ``on_pair`` is told what is being compared, how many pairs are done, and of how many. Raises RunError when the
    requests of a run cannot be read.
    """
    pairs = []
    for i, (first, second) in enumerate(pairing.pairs):
        if on_pair:
            on_pair(_named(first, second), i, len(pairing.pairs))
        pairs.append(compare_variants(a, b, first, second))
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "a": _head(a),
        "b": _head(b),
        "differences": run_differences(a, b, pairing.pairs),
        "alone": {"a": list(pairing.alone_a), "b": list(pairing.alone_b)},
        "method": {"confidence": CONFIDENCE, "draws": NUM_DRAWS, "seed": SEED},
        "notes": list(_notes()),
        "pairs": pairs,
    }


def compare_variants(a: Run, b: Run, first: str, second: str) -> dict[str, Any]:
    """One pair: ``metrics`` maps dotted paths of ``summary.json`` to A's and B's value, their ratio B/A with bounds and
    what that says of B."""
    requests = (read_requests(a, first), read_requests(b, second))
    same = requests[0].same_as(requests[1])
    resamples = _resamples(requests, same)
    summaries = (a.summary["variants"][first], b.summary["variants"][second])
    slos = (_slo(a, first), _slo(b, second))
    drawn = [_drawn(*side) for side in zip(requests, slos, resamples, strict=True)]
    num_blocks = min(one.num_blocks for one in resamples)
    metrics = {}
    for name in [*measure_names(), *WITHOUT_INTERVAL]:
        values = [_value(summary, name) for summary in summaries]
        if name == "goodput_rps" and not any(map(_has_limits, requests, slos)):
            continue
        draws = [side.get(name) for side in drawn]
        metrics[name] = _metric(name, values, draws, num_blocks)
    return {
        "variant_a": first,
        "variant_b": second,
        "same_requests": same,
        "block_requests": {"a": resamples[0].block_requests, "b": resamples[1].block_requests},
        "num_requests": {"a": len(requests[0]), "b": len(requests[1])},
        "statuses": {"a": requests[0].statuses, "b": requests[1].statuses},
        "step_time": {"a": summaries[0].get("profile"), "b": summaries[1].get("profile")},
        "metrics": metrics,
        "curves": curves(*requests, same),
    }


def _value(summary: Mapping[str, Any], name: str) -> float | None:
    """A run's own figure; no hit rate where nothing was looked up in a prefix cache."""
    if name == "kv_cache.prefix_hit_rate" and not dig(summary, "kv_cache.prefix_looked_up_tokens"):
        return None
    return dig(summary, name)


def _resamples(requests: tuple[Requests, Requests], same: bool) -> tuple[Resamples, Resamples]:
    """The same blocks for both when they met the same requests; else each its own, drawn from a seed that belongs to
    the requests, so that which run is called A changes nothing."""
    lengths = [block_length(one.columns[name] for name in LATENCIES) for one in requests]
    if same:
        both = draw_blocks(max(1, len(requests[0])), max(lengths), SEED)
        return both, both
    drawn = [
        draw_blocks(max(1, len(one)), length, SEED + one.digest())
        for one, length in zip(requests, lengths, strict=True)
    ]
    return drawn[0], drawn[1]


def _drawn(requests: Requests, slo: dict[str, Any], resamples: Resamples) -> dict[str, FloatColumn]:
    if not len(requests):
        return {}
    drawn = drawn_rates(requests, slo, resamples)
    for latency in LATENCIES:
        statistics = drawn_latencies(requests, latency, resamples)
        drawn |= {f"{latency}.{statistic}": values for statistic, values in statistics.items()}
    return drawn


def _metric(
    name: str, values: list[float | None], draws: list[FloatColumn | None], num_blocks: float
) -> dict[str, float | str | None]:
    a, b = values
    entry: dict[str, float | str | None] = {"a": a, "b": b, "ratio": None, "low": None, "high": None, "verdict": None}
    if a is None or b is None or a <= 0 or b < 0:
        return entry
    entry["ratio"] = b / a
    drawn_a, drawn_b = draws
    if b > 0 and drawn_a is not None and drawn_b is not None:
        interval = ratio_interval(b / a, drawn_a, drawn_b, num_blocks)
        better = "" if name in NEUTRAL else "higher" if name in HIGHER_IS_BETTER else "lower"
        if interval.low is not None or interval.high is not None:
            entry |= {"low": interval.low, "high": interval.high, "verdict": verdict(interval, better)}
    return entry


def _slo(run: Run, variant: str) -> dict[str, Any]:
    scenario = run.manifest["variants"][variant].get("resolved_scenario") or {}
    return dict(scenario.get("slo") or {})


def _has_limits(requests: Requests, slo: dict[str, Any]) -> bool:
    return has_limits(requests.tenants, SimpleNamespace(**slo))


def _head(run: Run) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "name": run.name,
        "scenario": run.summary.get("scenario"),
        "seed": run.manifest.get("seed"),
        "command": run.manifest.get("command"),
        "simserve_version": run.manifest.get("simserve_version"),
        "variants": run.variants,
    }


def _notes() -> Iterator[str]:
    yield (
        f"Ratios are B/A. Intervals ({CONFIDENCE:.0%}) come from {NUM_DRAWS} resamples of blocks of neighbouring "
        "requests (moving-block bootstrap, Künsch 1989; blocks twice as long as Politis and White's rule says): the "
        "spread within these two runs, not over seeds. For that, use `simserve sweep` with replications."
    )
    yield (
        "Latencies are of finished requests. No interval where fewer than five requests lie beyond a quantile, nor for "
        "what summary.json alone holds (ITL)."
    )
    yield "Of twenty measures that did not change, one interval leaves 1 out by chance."


def _named(first: str, second: str) -> str:
    return first if first == second else f"{first} and {second}"
