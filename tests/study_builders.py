"""Documents of studies as the commands write them, with made-up numbers: a queue whose wait grows as 1 / (1 − load)."""

from __future__ import annotations

from typing import Any

MANIFEST = {"kind": "simserve study", "seed": 7, "versions": {"python": "3.11.2"}, "revision": None}
MEASURED = {"name": "toy-cpu", "kind": "profile", "device": "a small CPU", "calibrated": True, "holdout_mape": 0.031}
ESTIMATED = {"name": "h100-roofline", "kind": "roofline", "device": "H100", "calibrated": False, "holdout_mape": None}
VARIANTS = {"static-contiguous": 8.0, "continuous-contiguous": 14.0, "continuous-paged": 20.0}  # what each can carry
LOAD = "workload.arrivals.rate_rps"


def interval(value: float | None, spread: float = 0.04, n: int = 5) -> dict[str, Any]:
    """A mean with an interval of ± ``spread`` of it; no bounds for one replication."""
    if value is None or n < 2:
        return {"value": value, "low": None, "high": None, "n": n}
    return {"value": value, "low": value * (1 - spread), "high": value * (1 + spread), "n": n}


def metrics_at(load: float, carries: float, n: int = 5) -> dict[str, Any]:
    """What a made-up engine of that saturation rate measures at a load."""
    use = min(load / carries, 0.995)
    wait = 0.05 / (1 - use) + (60.0 * (load / carries - 1) if load > carries else 0.0)
    served = min(load, carries)
    found = {
        "output_tokens_per_s": 200 * served,
        "total_tokens_per_s": 1200 * served,
        "requests_per_s": served,
        "offered_rps": load,
        "goodput_rps": served * max(0.0, 1 - use**4),
        "mean_batch_size": 1 + 31 * use,
        "mean_waiting": load * wait,
        "kv_used": 0.9 * use,
        "num_preemptions": 0.0,
        "unanswered_share": max(0.0, 1 - carries / load),
        "extrapolated_step_share": 0.0,
    }
    for family, base in (("ttft_s", wait), ("tpot_s", 0.02 + 0.05 * use), ("itl_s", 0.02 + 0.06 * use)):
        found |= {f"{family}.{name}": base * times for name, times in STATISTICS.items()}
    found |= {f"e2e_s.{name}": (wait + 200 * (0.02 + 0.05 * use)) * times for name, times in STATISTICS.items()}
    spread = 0.03 + 0.25 * use**6
    return {path: interval(value, spread, n) for path, value in found.items()}


STATISTICS = {"mean": 1.0, "p50": 0.8, "p90": 2.1, "p95": 2.9, "p99": 4.6}


def sweep_document(
    loads: list[float] | None = None,
    others: dict[str, list[Any]] | None = None,
    variants: dict[str, float] | None = None,
    n: int = 5,
) -> dict[str, Any]:
    """``sweep.json`` over loads and, if given, one other axis whose i-th value carries 1 + i/2 times as much."""
    loads = [1 + 1.7 * i for i in range(14)] if loads is None else loads
    variants = VARIANTS if variants is None else variants
    others = others or {}
    settings = [{key: value} for key, values in others.items() for value in values] or [{}]
    document: dict[str, Any] = {
        "schema_version": 1,
        "kind": "simserve sweep",
        "scenario": "skewed64",
        "model": "qwen2.5-0.5b",
        "axes": [
            *([{"key": LOAD, "values": loads, "scale": "linear"}] if loads else []),
            *({"key": key, "values": values, "scale": "list"} for key, values in others.items()),
        ],
        "load_axis": LOAD if loads else None,
        "replications": n,
        "seeds": list(range(7, 7 + n)),
        "warmup": "auto",
        "confidence": 0.95,
        "notes": ["The trace is resampled in blocks of 38 requests."],
        "step_times": dict.fromkeys(variants, MEASURED),
        "points": [],
        "curves": [],
    }
    for i, setting in enumerate(settings):
        for variant, carries in variants.items():
            _add_curve(document, variant, setting, carries * (1 + i / 2), n)
    _mark_front(document)
    return document


def _add_curve(document, variant, setting, carries, n):
    loads = [axis["values"] for axis in document["axes"] if axis["key"] == document["load_axis"]]
    first = len(document["points"])
    for load in loads[0] if loads else [4.0]:
        number = len(document["points"])
        document["points"].append(
            {
                "settings": {**({LOAD: load} if loads else {}), **setting},
                "variant": variant,
                "metrics": metrics_at(load, carries, n),
                "grows": load > carries,
                "growth_p": 1e-6 if load > carries else 0.41,
                "stopped_early": n if load > 1.5 * carries else 0,
                "pareto": False,
                "report": f"runs/{number:04d}/report.html" if number % 2 == 0 else None,
                "command": f"simserve run skewed64.yaml --set {LOAD}={load:g} --out runs/{number:04d}",
            }
        )
    if loads:
        indices = list(range(first, len(document["points"])))
        above = [load for load in loads[0] if load > carries]
        inside = loads[0][0] < 0.8 * carries < loads[0][-1]
        knee = {**interval(0.8 * carries, 0.06, n), "range": [loads[0][0], loads[0][-1]]} if inside else None
        curve = {"variant": variant, "settings": setting, "points": indices, "knee": knee}
        document["curves"].append({**curve, "saturated_from": min(above, default=None)})


def _mark_front(document):
    """Points that no other beats in throughput and mean latency, growing ones left out."""

    def place(point):
        return tuple(point["metrics"][path]["value"] for path in ("output_tokens_per_s", "e2e_s.mean"))

    steady = [point for point in document["points"] if not point["grows"]]
    for point in steady:
        speed, wait = place(point)
        rivals = (place(other) for other in steady if other is not point)
        point["pareto"] = not any(s >= speed and w <= wait and (s, w) != (speed, wait) for s, w in rivals)
