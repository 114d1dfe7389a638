"""A comparison in words: what a measure is called, how its value and its ratio are printed, what a verdict says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.report.words import NBSP, NOTHING, count, duration, number, plural, share, times

VERDICTS = {
    "better": "B is better",
    "worse": "B is worse",
    "different": "differs",
    "unclear": "no clear difference",
    "same": "the same",
}
_LABELS = {
    "output_tokens_per_s": "output tokens/s",
    "total_tokens_per_s": "total tokens/s",
    "requests_per_s": "requests/s",
    "goodput_rps": "goodput, requests/s",
    "makespan_s": "makespan",
    "mean_batch_size": "batch size, mean",
    "busy_share": "busy",
    "num_preemptions": "preemptions",
    "kv_cache.mean_used": "cache filled, mean",
    "kv_cache.prefix_hit_rate": "prefix hits, of tokens looked up",
    "fairness.speed": "Jain: tokens per second of E2E",
    "fairness.slo_attainment": "Jain: requests within limits",
    "fairness.served_share": "Jain: tokens got of those asked for",
}
_LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E", "queue_time_s": "queue time", "itl_s": "ITL"}
MAX_DIGITS = 6
MAX_VALUE = 60  # characters of a value in a list of differences


def label(name: str) -> str:
    """The words for a dotted measure: ``TTFT, p99``."""
    latency, _, statistic = name.partition(".")
    return f"{_LATENCIES[latency]}, {statistic}" if latency in _LATENCIES else _LABELS.get(name, name)


def value_text(name: str, value: float | None) -> str:
    """A measure's value with its unit."""
    if name.partition(".")[0] in _LATENCIES or name == "makespan_s":
        return duration(value)
    if name.endswith(("_share", "_used", "hit_rate")) and not name.startswith("fairness."):
        return share(value)
    return count(value) if name.startswith("num_") else number(value)


def ratio_text(metric: Mapping[str, Any]) -> str:
    """The ratio B/A: ``1.62×``."""
    return _unlike_one(metric["ratio"])


def interval_text(metric: Mapping[str, Any]) -> str:
    """Its bounds: ``1.58 to 1.66×``, ``2.00× or more``, ``any``; a dash where there is no interval."""
    low, high = metric["low"], metric["high"]
    if low is None and high is None:
        return NOTHING
    if not low and high is None:
        return "any"
    first = _unlike_one(low).removesuffix("×") if low is not None else "0"
    return f"{first} to {_unlike_one(high)}" if high is not None else f"{first}× or more"


def _unlike_one(ratio: float | None) -> str:
    """A ratio with as many digits, up to six, as tell it from 1, which is what verdicts are about."""
    text, digits = times(ratio), 3
    while ratio is not None and ratio != 1 and text.strip("0.×") == "1" and digits <= MAX_DIGITS:
        text, digits = f"{ratio:.{digits}f}×", digits + 1
    return text


def verdict_text(metric: Mapping[str, Any]) -> str:
    """What the interval says, in words; empty where there is none."""
    return VERDICTS.get(str(metric["verdict"]), "")


def value_of_key(difference: Mapping[str, Any], side: str) -> str:
    """One side of a difference, long ones abridged; ``not there`` where a side lacks the key."""
    if side not in difference:
        return "not there"
    value = difference[side]
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
    if len(text) <= MAX_VALUE:
        return text
    ending = f" ({plural(len(value), 'value')})" if isinstance(value, list) else ""
    return f"{text[: MAX_VALUE - 1]}…{ending}"


def pair_name(pair: Mapping[str, Any]) -> str:
    """``continuous``, or ``static → continuous`` where the names differ."""
    first, second = str(pair["variant_a"]), str(pair["variant_b"])
    return first if first == second else f"{first} → {second}"


def difference_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Key, A's value and B's; what differs in one pair alone carries its name."""
    pairs = document["pairs"]
    return [
        (
            one["key"] + ("" if one["pair"] is None else f" ({pair_name(pairs[one['pair']])})"),
            value_of_key(one, "a"),
            value_of_key(one, "b"),
        )
        for one in document["differences"]
    ]


def ratio_rows(pair: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """By measure, for all that either run has: label, A, B, ratio, interval, verdict; then how the requests ended."""
    rows = {
        name: (
            label(name),
            *(value_text(name, metric[side]) for side in ("a", "b")),
            ratio_text(metric),
            interval_text(metric),
            verdict_text(metric),
        )
        for name, metric in pair["metrics"].items()
        if metric["a"] is not None or metric["b"] is not None
    }
    counts = pair["statuses"]
    for status in dict.fromkeys([*counts["a"], *counts["b"]]):
        first, second = (counts[side].get(status, 0) for side in ("a", "b"))
        if status == "finished" or first or second:
            words = "" if first == second or status != "finished" else "the numbers differ"
            rows[status] = (f"requests {status.replace('_', ' ')}", f"{first:,}", f"{second:,}", "", "", words)
    return rows


def method_text(pair: Mapping[str, Any]) -> str:
    """How the intervals of a pair came about."""
    blocks = pair["block_requests"]
    if pair["same_requests"]:
        return (
            f"Both met the same requests, so both are resampled together, in blocks of {blocks['a']:,}{NBSP}requests."
        )
    return (
        "The requests differ in number, arrival or length, so each run is resampled by itself, in blocks of "
        f"{blocks['a']:,} (A) and {blocks['b']:,}{NBSP}requests (B)."
    )


def unanswered_text(pair: Mapping[str, Any]) -> str:
    """A warning where requests were left unanswered: latencies do not count them."""
    left = {side: _unanswered(pair["statuses"][side]) for side in ("a", "b")}
    if not any(left.values()):
        return ""
    return (
        f"{pair_name(pair)}: A left {plural(left['a'], 'request')} unanswered, B {left['b']:,}. Latencies are of "
        "finished requests alone, so a run that turns away more can look faster."
    )


def _unanswered(statuses: Mapping[str, int]) -> int:
    return sum(statuses.values()) - statuses.get("finished", 0)
