"""Documents of studies as the commands write them, with made-up numbers: a queue whose wait grows as 1 / (1 − load)."""

from __future__ import annotations

from typing import Any

MANIFEST = {"kind": "simserve study", "seed": 7, "versions": {"python": "3.11.2"}, "revision": None}
MEASURED = {"name": "toy-cpu", "kind": "profile", "device": "a small CPU", "calibrated": True, "holdout_mape": 0.031}
ESTIMATED = {"name": "h100-roofline", "kind": "roofline", "device": "H100", "calibrated": False, "holdout_mape": None}
VARIANTS = {"static-contiguous": 8.0, "continuous-contiguous": 14.0, "continuous-paged": 20.0}  # what each can carry
RATE = {
    "key": "workload.arrivals.rate_rps",
    "label": "offered load, requests/s",
    "unit": "requests/s",
    "base_rps": 1.0,
}
CLIENTS = {"key": "workload.concurrency", "label": "concurrent clients", "unit": "clients", "base_rps": None}
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
        "metric": "e2e_s.mean",
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
                "growth_tested": True,
                "growth_p": 1e-6 if load > carries else 0.41,
                "leaves_unanswered": False,
                "stopped_early": n if load > 1.5 * carries else 0,
                "pareto": False,
                "report": f"runs/{number:04d}/report.html" if number % 2 == 0 else None,
                "command": f"simserve run skewed64.yaml --set {LOAD}={load:g} --out runs/{number:04d}",
            }
        )
    if loads:
        indices = list(range(first, len(document["points"])))
        above = [load for load in loads[0] if load > carries]
        inside = loads[0][0] < 0.8 * carries and bool(above)
        knee = {**interval(0.8 * carries, 0.06, n), "range": [loads[0][0], loads[0][-1]]} if inside else None
        curve = {"variant": variant, "settings": setting, "points": indices, "knee": knee}
        reached = {"saturated_from": min(above, default=None), "saturation_reached": bool(above)}
        document["curves"].append({**curve, **reached})


def _mark_front(document):
    """Points that no other beats in throughput and mean latency, growing ones left out."""

    def place(point):
        return tuple(point["metrics"][path]["value"] for path in ("output_tokens_per_s", "e2e_s.mean"))

    steady = [point for point in document["points"] if not point["grows"]]
    for point in steady:
        speed, wait = place(point)
        rivals = (place(other) for other in steady if other is not point)
        point["pareto"] = not any(s >= speed and w <= wait and (s, w) != (speed, wait) for s, w in rivals)


def knee_document(variants: dict[str, float] | None = None, n: int = 5) -> dict[str, Any]:
    """``knee.json``: each variant's curve up to a third above what it carries, with tests at 95 % and 105 %."""
    found = {}
    for i, (name, carries) in enumerate((VARIANTS if variants is None else variants).items()):
        loads = [carries * share for share in (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05, 1.2, 1.33)]
        checks = [
            {"at": at, "load": at * carries, "grows": at > 1, "p_value": 1e-5 if at > 1 else 0.62}
            for at in (0.95, 1.05)
        ]
        found[name] = {
            "saturation": {**interval(carries, 0.03, n), "checks": checks},
            "knee": {**interval(0.8 * carries, 0.07, n), "range": [loads[0], loads[-1]]},
            "batch_knee": {"value": 16, "low": 8, "high": 16, "shares": {"8": 0.13, "16": 0.87}} if i else None,
            "curve": [
                {
                    "load": load,
                    "metrics": metrics_at(load, carries, n),
                    "grows": load > carries,
                    "growth_p": 1e-6 if load > carries else 0.4,
                }
                for load in loads
            ],
            "step_time": MEASURED,
        }
    return {
        "schema_version": 1,
        "kind": "simserve knee",
        "scenario": "skewed64",
        "load": RATE,
        "metric": "e2e_s.mean",
        "variants": found,
        "notes": ["Searched from 1 to 40 requests/s."],
    }


def capacity_document(
    variants: dict[str, float] | None = None,
    settings: list[dict[str, Any]] | None = None,
    price: float | None = 2.5,
    target: float | None = 100.0,
    n: int = 5,
) -> dict[str, Any]:
    """``capacity.json`` with two SLOs; the capacity is 85 % of what an engine carries."""
    rows = []
    for i, setting in enumerate(settings or [{}]):
        for name, carries in (VARIANTS if variants is None else variants).items():
            rows.append(_capacity_row(name, setting, carries * (1 + i / 2), (price, target), n))
    cost = "cost_per_million_output_tokens"
    rows.sort(key=lambda row: row[cost]["value"] if row[cost] else -row["capacity"]["value"])
    return {
        "schema_version": 1,
        "kind": "simserve capacity",
        "scenario": "skewed64",
        "load": RATE,
        "slos": [
            {"metric": "ttft_s.p99", "limit": 1.5, "text": "TTFT p99 at most 1.5 s"},
            {"metric": "tpot_s.p99", "limit": 0.4, "text": "TPOT p99 at most 400 ms"},
        ],
        "target_rps": target,
        "price_per_gpu_hour": price,
        "notes": ["Each row's search ended when its interval was narrower than 10 %."],
        "rows": rows,
    }


def _capacity_row(name, setting, carries, wanted, n):
    price, target = wanted
    capacity = interval(0.85 * carries, 0.04, n)
    cost = price and interval(price / 3600 / (200 * capacity["value"]) * 1e6, 0.04, n)
    ends = {key: target and capacity[end] and -(-target // capacity[end]) for key, end in ENDS.items()}
    return {
        "variant": name,
        "settings": setting,
        "capacity": capacity,
        "load": capacity,
        "reason": None,
        "limited_by": "saturation" if name == "continuous-paged" else "ttft_s.p99",
        "gpus_per_replica": 2,
        "output_tokens_per_s": 200 * capacity["value"],
        "total_tokens_per_s": 1200 * capacity["value"],
        "replicas": ends if target else None,
        "cost_per_million_output_tokens": cost,
        "cost_per_million_tokens": price and interval(cost["value"] / 6, 0.04, n),
        "cost_per_hour": price and target and 2 * price * ends["value"],
        "curve": [
            {"load": load, "metrics": metrics_at(load, carries, n), "grows": load > carries}
            for load in (carries * share for share in (0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 1.0, 1.15))
        ],
        "num_simulations": 45,
        "step_time": MEASURED,
    }


ENDS = {"value": "value", "low": "high", "high": "low"}  # the most capacity needs the fewest replicas
