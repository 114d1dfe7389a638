"""The document ``replay.json``: a run's summary in the same words, asked against got, and how late we were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simserve.distributions import FloatColumn, describe
from simserve.replay.dialect import Dialect
from simserve.replay.frames import token_gaps_s
from simserve.replay.outcome import STATUSES
from simserve.replay.token_counts import Counting
from simserve.scenario import SloConfig

KIND = "simserve replay"
SCHEMA_VERSION = 1
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s")
LEAST_LATENESS_S = 0.002  # a tick of the system's timer: below it nothing can be done
MAX_LATE_SHARE = 0.5  # of the mean time between arrivals
MAX_LATE_SHARE_OF_TTFT = 0.05  # of its median, where all requests are due at once
MAX_PROMPT_ERROR = 0.01
MAX_SHARE_TOGETHER = 0.05
UNSURE: tuple[Counting, ...] = (
    "one token an event, after one that usage does not count",
    "usage spread over events",
    "one token an event, assumed",
)
BUSY_SHARE = 0.7  # of one CPU: above it the lateness is this program's own work, below it others'
_HISTOGRAM = np.concatenate([[0.0], np.geomspace(1e-4, 100.0, 61)])
_MOST_FAULTS = 50


@dataclass(frozen=True)
class Measured:
    """A replay that is over: its tables, and what its clients counted."""

    requests: pd.DataFrame
    events: pd.DataFrame
    faults: Counter[str]
    num_turned_away: int
    num_stale: int
    cpu_share: float
    interrupted: bool


def replay_document(name: str, url: str, dialect: Dialect, measured: Measured, slo: SloConfig) -> dict[str, Any]:
    """Plain ints, floats and nulls. Latencies are of finished requests; rates run from the first arrival to the last
    token; ITL is of all tokens that came in last attempts."""
    requests, events = measured.requests, measured.events
    counts = requests["status"].value_counts()
    gaps_s = token_gaps_s(events)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "name": name,
        "url": url,
        "model": dialect.model_id,
        "asked_by": dialect.note,
        "interrupted": measured.interrupted,
        "num_requests": len(requests),
        **{f"num_{status}": int(counts[status]) for status in STATUSES if status not in ("running", "backing_off")},
        "num_turned_away": measured.num_turned_away,
        "num_attempts": int(requests["num_attempts"].sum()),
        "num_stale_connections": measured.num_stale,
        **_rates(requests, slo),
        **{latency: describe(requests[latency].to_numpy(np.float64)) for latency in LATENCIES},
        "itl_s": describe(gaps_s),
        "itl_histogram": {
            "edges_s": _HISTOGRAM.tolist(),
            "counts": np.histogram(np.minimum(gaps_s, _HISTOGRAM[-1]), _HISTOGRAM)[0].tolist(),
        },
        "tokens_per_event": _tokens_per_event(requests, events, gaps_s),
        "lateness_s": describe(requests["lateness_s"].to_numpy(np.float64)),
        "connect_wait_s": describe(requests["connect_wait_s"].where(requests["num_attempts"] > 0).to_numpy(np.float64)),
        "client_cpu_share": measured.cpu_share,
        "prompt_tokens": _prompt_tokens(requests),
        "output_lengths": _output_lengths(requests),
        "http_statuses": _counted(requests.loc[requests["http_status"] > 0, "http_status"]),
        "finish_reasons": _counted(requests.loc[requests["finish_reason"] != "", "finish_reason"]),
        "faults": dict(measured.faults.most_common(_MOST_FAULTS)),
    }


def warnings_of(document: Mapping[str, Any], requests: pd.DataFrame) -> list[str]:
    """What a reader must know before trusting the figures, a sentence each."""
    about = (_ended_early, _prompts_off, _tokens_shared)
    return [*_late(requests, document["client_cpu_share"]), *(words for each in about for words in each(document))]


def _rates(requests: pd.DataFrame, slo: SloConfig) -> dict[str, Any]:
    finished = requests[requests["status"] == "finished"]
    sent = requests["arrival_s"].dropna()
    makespan_s = float(finished["last_token_s"].max() - sent.min()) if len(finished) else 0.0
    span_s = float(sent.max() - sent.min()) if len(sent) else 0.0
    good = pd.Series(True, index=finished.index)
    for latency, limit in slo.model_dump().items():
        if limit is not None:
            good &= ~(finished[latency] > limit)
    outputs = int(finished["num_output_tokens"].sum())

    def per_s(count: float) -> float:
        return float(count) / makespan_s if makespan_s > 0 else 0.0

    return {
        "offered_rps": (len(sent) - 1) / span_s if span_s > 0 else None,
        "output_tokens": outputs,
        "makespan_s": makespan_s,
        "output_tokens_per_s": per_s(outputs),
        "total_tokens_per_s": per_s(outputs + int(finished["num_prompt_tokens"].sum())),
        "requests_per_s": per_s(len(finished)),
        "goodput_rps": per_s(int(good.sum())),
        "slo_attainment": float(good.sum()) / len(requests) if len(requests) else None,
        "slo": slo.model_dump(),
    }


def _tokens_per_event(requests: pd.DataFrame, events: pd.DataFrame, gaps_s: FloatColumn) -> dict[str, Any]:
    """How tokens were told apart: mean and largest number in an event, the share of gaps that are 0 (tokens of one
    event, or of events that arrived in one piece), and for how many requests the numbers are known in which way."""
    tokens = events["num_tokens"]
    return {
        "mean": float(tokens.mean()) if len(tokens) else None,
        "max": int(tokens.max()) if len(tokens) else None,
        "share_together": float((gaps_s == 0).mean()) if len(gaps_s) else None,
        "counting": _counted(requests["counting"].dropna()),
    }


def _prompt_tokens(requests: pd.DataFrame) -> dict[str, Any]:
    """Prompts as asked for and as usage counted them, over the requests that have both."""
    told = requests.dropna(subset=["counted_prompt_tokens"])
    asked, counted = (told[name].to_numpy(np.float64) for name in ("asked_prompt_tokens", "counted_prompt_tokens"))
    off = np.abs(counted - asked)
    return {
        "num_counted": len(told),
        "asked": int(asked.sum()),
        "counted": int(counted.sum()),
        "mean_error": float(counted.sum() / asked.sum() - 1) if asked.sum() else None,
        "max_error_tokens": int(off.max()) if len(off) else None,
    }


def _output_lengths(requests: pd.DataFrame) -> dict[str, Any]:
    """Answers that were finished: asked-for and counted tokens, and how many were shorter or longer than asked."""
    finished = requests[requests["status"] == "finished"]
    asked, got = finished["asked_output_tokens"], finished["num_output_tokens"]
    return {
        "asked": int(asked.sum()),
        "counted": int(got.sum()),
        "num_short": int((got < asked).sum()),
        "num_long": int((got > asked).sum()),
    }


def _counted(values: pd.Series[Any]) -> dict[str, int]:
    return {str(value): int(count) for value, count in sorted(Counter(values).items())}


def _late(requests: pd.DataFrame, cpu_share: float) -> list[str]:
    """Our own lateness, without what the server took to accept a connection."""
    own_s = (requests["lateness_s"] - requests["connect_wait_s"]).dropna()
    if own_s.empty:
        return []
    p99_s = float(np.percentile(own_s, 99))
    due_s = requests["due_s"]
    gap_s = float(due_s.max() - due_s.min()) / max(1, len(due_s) - 1)
    least_s = MAX_LATE_SHARE * gap_s if gap_s else MAX_LATE_SHARE_OF_TTFT * float(requests["ttft_s"].median())
    if not p99_s > np.nanmax([LEAST_LATENESS_S, least_s]):
        return []
    when = f"requests come every {gap_s * 1e3:,.1f} ms on average" if gap_s else "all requests are due at once"
    remedy = "offer less, or send from a faster machine" if cpu_share > BUSY_SHARE else "send from a quieter machine"
    late = f"this client was late: p99 of its lateness is {p99_s * 1e3:,.1f} ms where {when}"
    return [f"{late}, and it used {cpu_share:.0%} of one CPU; {remedy}"]


def _ended_early(document: Mapping[str, Any]) -> list[str]:
    lengths = document["output_lengths"]
    if not lengths["num_short"] and not lengths["num_long"]:
        return []
    return [
        f"output lengths were not kept: {lengths['num_short']:,} answers are shorter than asked for and "
        f"{lengths['num_long']:,} longer ({lengths['asked']:,} tokens asked for, {lengths['counted']:,} came)"
    ]


def _prompts_off(document: Mapping[str, Any]) -> list[str]:
    prompts = document["prompt_tokens"]
    if not prompts["num_counted"]:
        return ["the server does not tell how many tokens prompts have: their lengths are as asked for, unchecked"]
    if abs(prompts["mean_error"]) <= MAX_PROMPT_ERROR:
        return []
    return [
        f"prompts have {prompts['counted']:,} tokens by the server's count where {prompts['asked']:,} were asked for "
        f"({prompts['mean_error']:+.2%}; the furthest is off by {prompts['max_error_tokens']:,})"
    ]


def _tokens_shared(document: Mapping[str, Any]) -> list[str]:
    tokens = document["tokens_per_event"]
    words = []
    if (tokens["share_together"] or 0.0) > MAX_SHARE_TOGETHER:
        words.append(
            f"{tokens['share_together']:.1%} of the tokens arrived at one instant with the one before (up to "
            f"{tokens['max']:,} in an event): such gaps count as 0, so ITL is the network's as much as the server's"
        )
    for counting, num_answers in tokens["counting"].items():
        if counting in UNSURE:
            words.append(f"{num_answers:,} answers do not tell their tokens by event: {counting}")
    return words
