"""A validation in words: what a figure is called, how its error is printed, and what the error says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.report.words import NBSP, NOTHING, count, duration, joined, number, plural

Entry = Mapping[str, Any]
_LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E"}
_LABELS = {
    "throughput.output_tokens_per_s": "output tokens/s",
    "throughput.requests_per_s": "requests/s",
    "makespan_s": "makespan",
    "mean_batch_size": "batch size, mean",
    "num_preemptions": "preemptions",
}
ORDER = (
    "throughput.output_tokens_per_s",
    "throughput.requests_per_s",
    "makespan_s",
    "ttft_s",
    "tpot_s",
    "itl_s",
    "e2e_s",
    "mean_batch_size",
    "num_preemptions",
)
HEAD = ("", "measured", "predicted", "calibration", "error", "noise", "in words")
_DRAWN = HEAD.index("calibration")
BANDS = ((0.02, "close"), (0.05, "fair"), (0.15, "off"))


def in_order(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Figures that either side has, rates first."""
    known = {name: one for name, one in entries.items() if one["measured"] is not None or one["predicted"] is not None}
    return {name: known[name] for first in ORDER for name in known if name == first or name.startswith(f"{first}.")}


def label(name: str) -> str:
    """``TTFT, p99``."""
    latency, _, statistic = name.partition(".")
    return f"{_LATENCIES[latency]}, {statistic}" if latency in _LATENCIES else _LABELS.get(name, name)


def value_text(name: str, value: float | None) -> str:
    """A figure with its unit."""
    if name.partition(".")[0] in _LATENCIES or name == "makespan_s":
        return duration(value)
    return count(value) if name == "num_preemptions" and value == round(value or 0) else number(value)


def error_text(error: float | None) -> str:
    """``+0.4 %``: signed, two significant digits below one percent."""
    if error is None:
        return NOTHING
    percent = 100 * error
    if percent == 0:
        return f"0{NBSP}%"
    digits = 0 if abs(percent) >= 100 else 1 if abs(percent) >= 1 else 2
    return f"{percent:+.{digits}f}{NBSP}%".replace("-", "−")


def noise_text(noise: float | None) -> str:
    """``± 1.2 %``."""
    return NOTHING if noise is None else f"±{NBSP}{100 * noise:.1f}{NBSP}%"


def calibration_text(one: Entry) -> str:
    """Half the middle 90 % of predictions on draws of the calibration, over the prediction: ``± 2.1 %``."""
    span, predicted = one.get("predicted_range"), one["predicted"]
    return noise_text((span[1] - span[0]) / 2 / abs(predicted)) if span and predicted else NOTHING


def verdict(one: Entry, max_error: float | None = None) -> str:
    """What the error says, in a word or two; empty where only one side has the figure."""
    error, noise = one["error"], (one["noise"] or 0.0) + 1e-12
    if error is None:
        return ""
    if max_error is not None and abs(error) > max(max_error, noise):
        return "over the limit"
    if error == 0:
        return "the same"
    if abs(error) <= noise:
        return "within noise"
    return next((word for limit, word in BANDS if abs(error) <= limit), "far off")


def error_rows(entries: Mapping[str, Entry], max_error: float | None = None) -> list[tuple[str, ...]]:
    """Label, measured, predicted, calibration, error, noise, verdict."""
    return [
        (
            label(name),
            value_text(name, one["measured"]),
            value_text(name, one["predicted"]),
            calibration_text(one),
            error_text(one["error"]),
            noise_text(one["noise"]),
            verdict(one, max_error),
        )
        for name, one in in_order(entries).items()
    ]


def error_table(
    entries: Mapping[str, Entry], max_error: float | None = None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows, without the column of the calibration where nothing was drawn from one."""
    rows = error_rows(entries, max_error)
    if any(one.get("predicted_range") for one in entries.values()):
        return HEAD, rows
    return HEAD[:_DRAWN] + HEAD[_DRAWN + 1 :], [row[:_DRAWN] + row[_DRAWN + 1 :] for row in rows]


def latency_errors(entries: Mapping[str, Entry]) -> dict[str, float]:
    """Signed errors of mean, p50, p90, p95 and p99 of TTFT, TPOT and E2E, those that are known."""
    held = ("ttft_s.", "tpot_s.", "e2e_s.")
    return {name: one["error"] for name, one in entries.items() if name.startswith(held) and one["error"] is not None}


def summary_text(document: Mapping[str, Any]) -> str:
    """The mean and the largest error over the latencies' figures, and the error of the throughput."""
    entries = {
        f"{group}.{leaf}": one
        for group in ("ttft_s", "tpot_s", "e2e_s")
        for leaf, one in document["metrics"][group].items()
    }
    errors = latency_errors(entries)
    if not errors:
        return "No latency is known on both sides."
    mean = sum(map(abs, errors.values())) / len(errors)
    worst = max(errors, key=lambda name: abs(errors[name]))
    speed = document["metrics"]["throughput"]["output_tokens_per_s"]["error"]
    tail = f"; throughput {error_text(speed)}" if speed is not None else ""
    return (
        f"Mean absolute error {error_text(mean).lstrip('+')} over {plural(len(errors), 'figure')} of TTFT, TPOT and "
        f"E2E; the largest is {error_text(errors[worst])} ({label(worst)}){tail}."
    )


def steps_text(steps: Mapping[str, Any]) -> str:
    """How many compositions are identical, and where the first difference is."""
    compared, identical, first = steps["compared"], steps["identical"], steps["first_difference"]
    if first is None:
        return f"All {compared:,} steps have the same composition."
    where = f"the first to differ is step {first['step']:,} of {first['run']}, in {joined(list(first['fields']))}"
    return f"{identical:,} of {compared:,} steps have the same composition; {where}."
