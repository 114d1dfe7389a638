"""Run folders without an engine: columns of requests that a test chooses, and the summary that follows from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from simserve.compare.requests import Requests
from simserve.distributions import describe

SOURCE = {"name": "toy-cpu", "kind": "profile", "device": "a CPU", "calibrated": True, "holdout_mape": 0.031}
SCENARIO = {
    "name": "toy",
    "model": "toy-25m",
    "workload": {"arrivals": {"process": "poisson", "rate_rps": 2.0}, "output_tokens": {"values": list(range(64))}},
    "engine": {"policy": "continuous", "max_num_seqs": 8},
    "slo": {"ttft_s": 1.0, "tpot_s": None, "e2e_s": None},
    "seed": 0,
}


def ar1(n, rho, rng, mean=1.0, spread=0.2):
    """``n`` positive values whose logs are a stationary AR(1) series with coefficient ``rho``; mean ``mean``."""
    noise = rng.normal(size=n)
    logs = np.empty(n)
    logs[0] = noise[0]
    for i in range(1, n):
        logs[i] = rho * logs[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return mean * np.exp(spread * logs - spread**2 / 2)


def requests_frame(ttft_s, seed=0, rate_rps=2.0, status=None):
    """Requests that arrive by a Poisson process, see their first token after ``ttft_s`` and a token every 50 ms."""
    n = len(ttft_s)
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate_rps, n)).round(9)
    prompts, outputs = rng.integers(1, 50, n), rng.integers(2, 40, n)
    status = np.full(n, "finished") if status is None else np.asarray(status)
    done = status == "finished"
    ttft = np.where(done, ttft_s, np.nan)
    e2e = ttft + 0.05 * (outputs - 1)
    return pd.DataFrame(
        {
            "request_id": np.arange(n),
            "status": pd.Categorical(status),
            "arrival_s": arrivals,
            "num_prompt_tokens": prompts,
            "num_output_tokens": outputs,
            "end_s": np.where(done, arrivals + e2e, arrivals),
            "ttft_s": ttft,
            "tpot_s": np.where(done, 0.05, np.nan),
            "e2e_s": e2e,
            "queue_time_s": ttft * 0.5,
            "num_emitted_tokens": np.where(done, outputs, 0),
        }
    )


def summary_of(frame, slo_s=1.0):
    """The numbers of ``summary.json`` that a comparison reads, by their definitions."""
    done = frame[frame.status == "finished"]
    makespan = float(done.end_s.max() - frame.arrival_s.min()) if len(done) else 0.0

    def per_s(amount):
        return float(amount) / makespan if makespan else 0.0

    latencies = ("ttft_s", "tpot_s", "e2e_s", "queue_time_s")
    return {
        "model": "toy-25m",
        "profile": SOURCE,
        "num_requests": len(frame),
        "num_finished": len(done),
        "makespan_s": makespan,
        "output_tokens_per_s": per_s(done.num_emitted_tokens.sum()),
        "total_tokens_per_s": per_s(done.num_emitted_tokens.sum() + done.num_prompt_tokens.sum()),
        "requests_per_s": per_s(len(done)),
        "goodput_rps": per_s((done.ttft_s <= slo_s).sum()),
        **{name: describe(frame[name].to_numpy(np.float64)) for name in latencies},
        "itl_s": {"mean": 0.05, "p50": 0.05, "p90": 0.06, "p99": 0.08},
        "mean_batch_size": 3.5,
        "busy_share": 0.9,
        "num_preemptions": 0,
        "kv_cache": {"mean_used": 0.25},
    }


def write_run(folder: Path, frames, scenario=None, **manifest):
    """A run folder with a variant per frame, as ``simserve run`` would leave it; returns the folder."""
    folder.mkdir(parents=True)
    scenario = scenario or SCENARIO
    names = pd.Index(list(frames))
    parts = [frame.assign(variant=pd.Categorical([name] * len(frame), names)) for name, frame in frames.items()]
    pd.concat(parts).to_parquet(folder / "requests.parquet", index=False)
    variants = {name: summary_of(frame) for name, frame in frames.items()}
    summary = {"schema_version": 1, "scenario": scenario["name"], "model": "toy-25m", "variants": variants}
    entry = {"resolved_scenario": scenario, "step_time": {**SOURCE, "digest": "ab" * 32}}
    document = {
        "kind": "simserve run",
        "schema_version": 1,
        "simserve_version": "0.1.0",
        "revision": None,
        "versions": {"python": "3.11.7", "numpy": "2.4.6"},
        "platform": "Linux x86_64",
        "command": f"simserve run toy.yaml --out {folder.name}",
        "started": f"2026-01-01T00:00:0{len(folder.name) % 10}+00:00",
        "wall_time_s": len(folder.name) / 7,
        "seed": scenario["seed"],
        "scenario": scenario["name"],
        "variants": {name: entry for name in frames},
        **manifest,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "manifest.json").write_text(json.dumps(document))
    return folder


def requests_of(frame) -> Requests:
    """A frame as the comparison reads it."""
    columns = {name: frame[name].to_numpy(np.float64) for name in frame if name not in {"request_id", "status"}}
    return Requests(columns, (frame.status == "finished").to_numpy(), dict(frame.status.value_counts()))
