"""guidellm's ``benchmarks.json``, request by request where they were kept, else its aggregates.

Read in the sources of guidellm 0.2.1, 0.3.1 (one flat record per request), 0.4.0, 0.5.3 and 0.8.1 (stamps under
``info.timings``). Stamps are Unix times of the client, in seconds; ``requests`` has lists of the successful, incomplete
(cut off when the time was up) and errored ones. A file holds one benchmark per rate that was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simserve.distributions import FloatColumn
from simserve.recorded.aggregates import QUANTILES, RecordedAggregates
from simserve.recorded.json_file import items, number, optional, read_object, refusal, section
from simserve.recorded.run import RecordedRun, Stamps, recorded_run
from simserve.request import IntColumn

FORMAT = "guidellm"
MARKS = ("benchmarks",)
_STATUSES = ("successful", "incomplete", "errored")
_LATENCIES = {  # theirs -> ours, and how many of theirs make a second; theirs with the first token in it is not ours
    "time_to_first_token_ms": ("ttft_s", 1000),
    "inter_token_latency_ms": ("tpot_s", 1000),
    "request_latency": ("e2e_s", 1),
}
_CLOCK = "times are the client's, of the wall clock, from when it sent a request"
_NO_ITL = "itl_s is not told: guidellm keeps each request's first and last token, not those between"


@dataclass(frozen=True)
class _Row:
    start: float
    first: float | None
    last: float | None
    end: float | None
    prompt: int
    output: int
    late: float | None


def read(path: Path, which: int | None = None) -> RecordedRun:
    """The run of one benchmark, the ``which``-th where there are several. Raises RunError: not such a file, several and
    none chosen, requests not kept or kept in part."""
    benchmark, where = _benchmark(path, which)
    groups = section(benchmark.get("requests"), f"{where}requests")
    kept = {status: items(groups.get(status) or [], f"{where}requests.{status}") for status in _STATUSES}
    _check_whole(benchmark, kept, where)
    rows = [
        _row(section(each, f"{where}requests.{status}[{i}]"), f"{where}requests.{status}[{i}]", status)
        for status in _STATUSES
        for i, each in enumerate(kept[status])
    ]
    sent = [row for row in rows if row is not None]
    if not sent:
        raise refusal(path.name, "no request was sent")
    stamps = Stamps(
        arrival_s=_column(row.start for row in sent),
        first_token_s=_column(row.first for row in sent),
        last_token_s=_column(row.last for row in sent),
        num_prompt_tokens=_tokens(row.prompt for row in sent),
        num_output_tokens=_tokens(row.output for row in sent),
        end_s=_column(row.end for row in sent),
    )
    notes = (_CLOCK, _NO_ITL, *_strategy_notes(benchmark), *_row_notes(rows, kept))
    return recorded_run(path.name, FORMAT, stamps, engine="a server, as guidellm saw it", notes=notes)


def keeps_requests(path: Path, which: int | None = None) -> bool:
    """Whether every request was kept, not a sample of them or none. Raises RunError."""
    benchmark, _ = _benchmark(path, which)
    groups = benchmark.get("requests")
    totals = _totals(benchmark)
    if not isinstance(groups, dict):
        return False
    kept = {status: groups.get(status) or [] for status in _STATUSES}
    return any(kept.values()) and all(len(each) >= totals.get(status, 0.0) for status, each in kept.items())


def aggregates(path: Path, which: int | None = None) -> RecordedAggregates:
    """The figures of one benchmark, over its successful requests. Raises RunError."""
    benchmark, where = _benchmark(path, which)
    metrics = section(benchmark.get("metrics"), f"{where}metrics")
    totals = _totals(benchmark)
    latencies = {ours: _quantiles(metrics, theirs, unit) for theirs, (ours, unit) in _LATENCIES.items()}
    per_second = [_successful(metrics, key) for key in ("output_tokens_per_second", "requests_per_second")]
    return RecordedAggregates(
        source=path.name,
        format=FORMAT,
        num_requests=round(sum(totals.get(status, 0.0) for status in _STATUSES)),
        num_finished=round(totals.get("successful", 0.0)),
        makespan_s=optional(benchmark, "duration"),
        output_tokens_per_s=optional(per_second[0], "mean"),
        requests_per_s=optional(per_second[1], "mean"),
        metrics={ours: figures for ours, figures in latencies.items() if figures},
        engine="a server, as guidellm saw it",
        notes=("aggregates only: no request can be replayed or matched", _NO_ITL, *_strategy_notes(benchmark)),
    )


def _benchmark(path: Path, which: int | None) -> tuple[Mapping[str, Any], str]:
    """One benchmark of the file, and what messages call it."""
    data = read_object(path)
    if "benchmarks" not in data:
        raise refusal(path.name, "is not guidellm's report (it has no benchmarks)")
    every = items(data["benchmarks"], f"{path.name}: benchmarks")
    if which is None and len(every) != 1:
        names = ", ".join(_strategy(each) for each in every[:12])
        rule = f"holds {len(every)} benchmarks ({names}); keep one, as with jq '.benchmarks |= [.[0]]'"
        raise refusal(path.name, rule if every else "holds no benchmark")
    at = which or 0
    if not 0 <= at < len(every):
        raise refusal(path.name, f"holds {len(every)} benchmarks (asked for number {at}, from 0)")
    where = f"{path.name}: benchmarks[{at}]"
    return section(every[at], where), f"{where}."


def _check_whole(benchmark: Mapping[str, Any], kept: Mapping[str, Sequence[Any]], where: str) -> None:
    """Requests can be kept in part (--sample-requests): what is left is then another workload."""
    totals = _totals(benchmark)
    for status, each in kept.items():
        if len(each) < totals.get(status, 0.0):
            rule = f"has {len(each):,} of {totals[status]:,.0f} requests, a sample; only its aggregates can be used"
            raise refusal(f"{where}requests.{status}", rule)


def _totals(benchmark: Mapping[str, Any]) -> dict[str, float]:
    """Requests by status: in ``metrics`` since 0.4, beside it before."""
    inner = benchmark.get("metrics")
    found = inner.get("request_totals") if isinstance(inner, dict) else None
    found = benchmark.get("request_totals") if found is None else found
    if not isinstance(found, dict):
        return {}
    return {status: value for status in _STATUSES if (value := optional(found, status)) is not None}


def _row(request: Mapping[str, Any], where: str, status: str) -> _Row | None:
    """A request of either form; None for one that was never sent."""
    stamps = _stamps(request)
    start = stamps.get("start")
    if start is None:
        return None
    known = {name: None if value is None else number(value, f"{where}: {name}") for name, value in stamps.items()}
    done = status == "successful"
    last = known["last"] if known["last"] is not None else known["end"]
    first = known["first"] if known["first"] is not None else last
    target = known["target"]
    return _Row(
        start=number(start, f"{where}: start"),
        first=first if done else None,
        last=last if done else None,
        end=known["end"] if done else None,
        prompt=_count(request, "prompt_tokens", "input_metrics", where),
        output=_count(request, "output_tokens", "output_metrics", where) if done else 0,
        late=None if target is None else number(start, where) - target,
    )


def _stamps(request: Mapping[str, Any]) -> dict[str, Any]:
    """The stamps of either form."""
    info = request.get("info")
    timings = info.get("timings") if isinstance(info, dict) else None
    if isinstance(timings, dict):
        names = ("request_start", "first_token_iteration", "last_token_iteration", "request_end", "targeted_start")
        found = [timings.get(name) for name in names]
    else:
        names = ("start_time", "first_token_time", "last_token_time", "end_time", "targeted_start")
        found = [request.get(name) for name in names]
    return dict(zip(("start", "first", "last", "end", "target"), found, strict=True))


def _count(request: Mapping[str, Any], key: str, group: str, where: str) -> int:
    value = request.get(key)
    inner = request.get(group)
    if value is None and isinstance(inner, dict):
        value = inner.get("text_tokens")
    if value is None:
        return 0
    found = number(value, f"{where}: {key}")
    if found < 0 or found != round(found):
        raise refusal(f"{where}: {key}", f"must be a number of tokens (got {found:g})")
    return round(found)


def _strategy(benchmark: object) -> str:
    """Such as ``constant at 4.0`` or ``concurrent with 8``; under ``config`` since 0.4, ``args`` before."""
    each = benchmark if isinstance(benchmark, dict) else {}
    holders = (each.get(key) for key in ("config", "args"))
    found = next((holder["strategy"] for holder in holders if isinstance(holder, dict) and "strategy" in holder), None)
    if not isinstance(found, dict):
        return "unknown strategy"
    rate, streams = found.get("rate"), found.get("streams", found.get("max_concurrency"))
    at = f" at {rate} requests/s" if rate is not None else f" with {streams} streams" if streams is not None else ""
    return f"{found.get('type_', 'strategy')}{at}"


def _strategy_notes(benchmark: Mapping[str, Any]) -> list[str]:
    return [f"offered by guidellm's strategy: {_strategy(benchmark)}"]


def _row_notes(rows: Sequence[_Row | None], kept: Mapping[str, Sequence[Any]]) -> list[str]:
    notes = []
    for status in _STATUSES[1:]:
        if kept[status]:
            notes.append(f"{len(kept[status]):,} requests {status}, which count as unfinished")
    unsent = sum(row is None for row in rows)
    if unsent:
        notes.append(f"{unsent:,} requests were never sent, and are left out")
    late = [row.late for row in rows if row is not None and row.late is not None]
    if late:
        notes.append(f"requests were sent {1000 * float(np.mean(late)):.1f} ms after their targeted time, on average")
    return notes


def _successful(metrics: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    outer = metrics.get(key)
    inner = outer.get("successful") if isinstance(outer, dict) else None
    return inner if isinstance(inner, dict) else {}


def _quantiles(metrics: Mapping[str, Any], key: str, unit: int) -> dict[str, float]:
    found = _successful(metrics, key)
    inner = found.get("percentiles")
    percentiles = inner if isinstance(inner, dict) else {}
    values = {"mean": optional(found, "mean"), **{q: optional(percentiles, q) for q in QUANTILES}}
    return {ours: value / unit for ours, value in values.items() if value is not None}


def _column(values: Any) -> FloatColumn:  # noqa: ANN401 - an iterable of numbers and None
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _tokens(values: Any) -> IntColumn:  # noqa: ANN401 - an iterable of numbers
    return np.array(list(values), np.int64)
