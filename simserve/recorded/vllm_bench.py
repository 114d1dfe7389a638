"""The JSON of ``vllm bench serve --save-result``, per request with ``--save-detailed``, else its aggregates.

Written by ``vllm/benchmarks/serve.py``; read in vLLM 0.19.0 and 0.32.0, where the keys used here are the same. Times
are of the client's ``perf_counter``: ``start_times`` when a request was sent, ``ttfts`` and ``itls`` in seconds after
it. A failed request has an error text, no output tokens and a ttft of 0. ``itls`` are gaps between pieces of a stream,
which may hold several tokens. Older vLLMs save no ``start_times``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simserve.distributions import FloatColumn
from simserve.recorded.aggregates import QUANTILES, RecordedAggregates
from simserve.recorded.json_file import items, lengths, numbers, optional, read_object, refusal
from simserve.recorded.run import RecordedRun, Stamps, recorded_run
from simserve.request import IntColumn

FORMAT = "vllm-bench"
MARKS = ("endpoint_type", "request_throughput")
_DETAILS = ("input_lens", "output_lens", "ttfts", "itls")
_LATENCIES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}
_CLOCK = "times are the client's: from when it sent a request, over the network and the server's HTTP"


def read(path: Path) -> RecordedRun:
    """The run, request by request. Raises RunError: not such a file, torn lists, or aggregates only."""
    data = _document(path)
    missing = [key for key in _DETAILS if key not in data]
    if missing:
        rule = f"has no {', '.join(missing)}, only aggregates; run vllm bench serve with --save-detailed"
        raise refusal(path.name, rule)
    name, count = path.name, len(items(data["ttfts"], f"{path.name}: ttfts"))
    if count == 0:
        raise refusal(name, "ttfts: must have an entry per request (it has none)")
    prompts, outputs = (lengths(data[key], f"{name}: {key}", count) for key in ("input_lens", "output_lens"))
    gaps = [numbers(each, f"{name}: itls[{i}]") for i, each in enumerate(items(data["itls"], f"{name}: itls", count))]
    done = _finished(data, outputs, name)
    start = _starts(data, name, count)
    first = start + numbers(data["ttfts"], f"{name}: ttfts", count)
    last = first + np.array([each.sum() for each in gaps])
    pieces = np.array([len(each) + 1 for each in gaps])
    return recorded_run(
        name,
        FORMAT,
        Stamps(start, first, np.where(done, last, np.nan), prompts, outputs),
        itl_s=np.concatenate([np.zeros(0), *(each for each, whole in zip(gaps, done, strict=True) if whole)]),
        engine=_engine(data),
        notes=(_CLOCK, *_notes(data), *_about(done, outputs, pieces)),
    )


def aggregates(path: Path) -> RecordedAggregates:
    """The figures of the whole run, which every such file has. Raises RunError."""
    data = _document(path)
    missing = "" if all(key in data for key in _DETAILS) else "aggregates only: no request can be replayed or matched"
    known = {ours: _quantiles(data, theirs) for theirs, ours in _LATENCIES.items()}
    finished = optional(data, "completed") or 0.0
    return RecordedAggregates(
        source=path.name,
        format=FORMAT,
        num_requests=round(optional(data, "num_prompts") or finished),
        num_finished=round(finished),
        makespan_s=optional(data, "duration"),
        output_tokens_per_s=optional(data, "output_throughput"),
        requests_per_s=optional(data, "request_throughput"),
        metrics={key: figures for key, figures in known.items() if figures},
        engine=_engine(data),
        notes=(*filter(None, [missing]), _CLOCK, *_notes(data), *_not_told(known)),
    )


def _document(path: Path) -> dict[str, Any]:
    data = read_object(path)
    if not all(mark in data for mark in MARKS):
        raise refusal(path.name, f"is not the result of vllm bench serve (it has no {' and '.join(MARKS)})")
    return data


def _starts(data: Mapping[str, Any], name: str, count: int) -> FloatColumn:
    if "start_times" in data:
        return numbers(data["start_times"], f"{name}: start_times", count)
    if data.get("request_rate") == "inf" and data.get("max_concurrency") is None:
        return np.zeros(count)  # all were sent at once
    raise refusal(name, "has no start_times, so nobody knows when requests came; a newer vllm bench serve saves them")


def _finished(data: Mapping[str, Any], outputs: IntColumn, name: str) -> np.typing.NDArray[np.bool_]:
    if "errors" not in data:
        return np.asarray(outputs > 0)
    errors = items(data["errors"], f"{name}: errors", len(outputs))
    return np.asarray([not error for error in errors], bool) & (outputs > 0)


def _quantiles(data: Mapping[str, Any], name: str) -> dict[str, float]:
    """Milliseconds to seconds; vLLM calls p50 the median too."""
    keys = {"mean": f"mean_{name}_ms", **{q: f"{q}_{name}_ms" for q in QUANTILES}}
    found = {ours: optional(data, theirs) for ours, theirs in keys.items()}
    found["p50"] = optional(data, f"median_{name}_ms") if found["p50"] is None else found["p50"]
    return {ours: value / 1000 for ours, value in found.items() if value is not None}


def _not_told(known: Mapping[str, Mapping[str, float]]) -> list[str]:
    gone = [key for key, figures in known.items() if not figures]
    hint = "give vllm bench serve --percentile-metrics ttft,tpot,itl,e2el"
    return [f"{', '.join(gone)} not told; {hint}"] if gone else []


def _engine(data: Mapping[str, Any]) -> str:
    backend, model = data.get("backend", data["endpoint_type"]), data.get("model_id")
    return f"a server of {model}, as vllm bench serve saw it (backend {backend})"


def _notes(data: Mapping[str, Any]) -> list[str]:
    """How requests were offered."""
    rate, limit = data.get("request_rate"), data.get("max_concurrency")
    notes = [f"offered at {rate} requests/s, burstiness {data.get('burstiness', 1.0)}"]
    if rate == "inf":
        notes = ["offered all at once"]
    if limit is not None:
        notes.append(f"at most {limit} at a time: a request's time starts when the client let it go")
    if data.get("spec_decode_acceptance_rate") is not None:
        notes.append("the server decoded speculatively, which is not simulated")
    return notes


def _about(done: np.typing.NDArray[np.bool_], outputs: IntColumn, pieces: IntColumn) -> list[str]:
    """What is odd about the requests."""
    notes = []
    if not done.all():
        notes.append(f"{np.count_nonzero(~done):,} of {len(done):,} requests failed, and count as unfinished")
    shared = np.count_nonzero(done & (pieces != outputs))
    if shared:
        whose = f"{shared:,} of {len(done):,} answers"
        notes.append(f"{whose} came in more or fewer pieces than tokens: itl_s is of pieces, not tokens")
    return notes
