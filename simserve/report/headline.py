"""The result in plain words, and the warnings that must not be missed. Plain text, never HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.report.words import dig, duration, joined, number, plural, ratio, share, times
from simserve.step_time.source import StepTimeSource

Summaries = Mapping[str, Mapping[str, Any]]
_SAME = 0.01  # relative difference of throughput that a reader would call none


@dataclass(frozen=True)
class Badge:
    """A warning: a few loud words and the sentence that explains them."""

    label: str
    sentence: str


def headline(summaries: Summaries) -> str:
    """One sentence: the best variant against the first one, or what the only variant does."""
    served = {name: summary for name, summary in summaries.items() if dig(summary, "num_finished")}
    if not served:
        return "No request was served."
    first, *others = served
    if not others:
        return _alone(first, served[first])
    speeds = {name: dig(summary, "output_tokens_per_s") or 0.0 for name, summary in served.items()}
    if max(speeds.values()) <= (1 + _SAME) * min(speeds.values()):
        return _equally_fast(served)
    fast = [name for name in served if speeds[name] >= max(speeds.values()) / (1 + _SAME)]
    shortest = min(_latency(served[name]) for name in fast)
    best = [name for name in fast if _latency(served[name]) <= shortest * (1 + _SAME)]
    return _runner_up(served, first, others) if first in best else _against(served, best, first)


def badges(sources: Mapping[str, StepTimeSource], summaries: Summaries) -> list[Badge]:
    """Warnings about step times that nobody measured, and requests that were turned away."""
    found = [
        Badge("uncalibrated", f"{joined(names)}: step times of {joined(used)} are estimated. {note}")
        for note, used, names in _uncalibrated(sources)
    ]
    changes = _changes(summaries)
    if changes:
        found.append(Badge("changed model", f"{'; '.join(changes)}."))
    outside = [
        f"{share(dig(summary, 'extrapolated_step_share'))} of the steps of {name}"
        for name, summary in summaries.items()
        if (dig(summary, "extrapolated_step_share") or 0.0) > 0
    ]
    if outside:
        found.append(Badge("extrapolated", f"{joined(outside)} lie outside the range that was measured."))
    refused = [
        f"{name} turned away {plural(int(dig(summary, 'num_rejected') or 0), 'request')} "
        f"of {int(dig(summary, 'num_requests') or 0):,}"
        for name, summary in summaries.items()
        if (dig(summary, "num_rejected") or 0) > 0
    ]
    if refused:
        found.append(Badge("requests rejected", f"{joined(refused)}: its figures cover the others only."))
    given_up = [
        f"{name}, {plural(num_left, 'client')} of {int(dig(summary, 'num_requests') or 0):,}"
        for name, summary in summaries.items()
        if (num_left := int((dig(summary, "num_cancelled") or 0) + (dig(summary, "num_timed_out") or 0)))
    ]
    if given_up:
        found.append(
            Badge("requests given up", f"{joined(given_up)}, left without an answer: latencies are the others'.")
        )
    return found


def source_sentence(source: StepTimeSource) -> str:
    """Where step times come from and how far off they are known to be."""
    error = source.holdout_mape
    if not source.calibrated:
        checked = f"; off by {share(error)} on average where it was checked" if error is not None else ""
        return f"estimated by {source.name} for {source.device}{checked}"
    known = f"held-out error {share(error)}" if error is not None else "held-out error not known"
    return f"measured: {source.name} on {source.device}, {known}"


def _latency(summary: Mapping[str, Any]) -> float:
    mean = dig(summary, "e2e_s.mean")
    return float("inf") if mean is None else mean


def _alone(name: str, summary: Mapping[str, Any]) -> str:
    return (
        f"{name} serves {number(dig(summary, 'output_tokens_per_s'))} output tokens/s; half of the first tokens arrive "
        f"within {duration(dig(summary, 'ttft_s.p50'))}, and an answer takes {duration(dig(summary, 'e2e_s.mean'))} "
        f"on average."
    )


def _against(served: Summaries, best: Sequence[str], first: str) -> str:
    speed = ratio(dig(served[best[0]], "output_tokens_per_s"), dig(served[first], "output_tokens_per_s"))
    latency = ratio(dig(served[best[0]], "e2e_s.mean"), dig(served[first], "e2e_s.mean"))
    verb = "serve" if len(best) > 1 else "serves"
    named = joined(list(best[:3]))
    return f"{named} {verb} {times(speed)} the output tokens/s of {first} at {times(latency)} the mean latency."


def _runner_up(served: Summaries, first: str, others: Sequence[str]) -> str:
    second = max(others, key=lambda name: dig(served[name], "output_tokens_per_s") or 0.0)
    speed = ratio(dig(served[second], "output_tokens_per_s"), dig(served[first], "output_tokens_per_s"))
    latency = ratio(dig(served[second], "e2e_s.mean"), dig(served[first], "e2e_s.mean"))
    return (
        f"{first} serves the most output tokens/s; {second} comes next with {times(speed)} of them, "
        f"at {times(latency)} the mean latency."
    )


def _equally_fast(served: Summaries) -> str:
    first = next(iter(served))
    speed = number(dig(served[first], "output_tokens_per_s"))
    best = min(served, key=lambda name: _latency(served[name]))
    worst = max(served, key=lambda name: _latency(served[name]))
    other = first if best != first else worst
    latency = ratio(dig(served[best], "e2e_s.mean"), dig(served[other], "e2e_s.mean"))
    if latency is None or latency > 1 - _SAME:
        return f"All variants do the same here: {speed} output tokens/s at the same mean latency."
    compared = f"{best} has {times(latency)} the mean latency of {other}"
    return f"All variants keep up, at about {speed} output tokens/s; {compared}."


def _uncalibrated(sources: Mapping[str, StepTimeSource]) -> list[tuple[str, list[str], list[str]]]:
    """Step times that were not measured: what is said of them, the sources of which that is said, and the variants."""
    users: dict[str, list[str]] = {}
    for name, source in sources.items():
        if not source.calibrated:
            users.setdefault(source.note, []).append(name)
    return [(note, list(dict.fromkeys(sources[name].name for name in names)), names) for note, names in users.items()]


def _changes(summaries: Summaries) -> list[str]:
    """For each thing in which a simulated model is not the model's or the step times' own, the variants it is so in."""
    users: dict[str, list[str]] = {}
    for name, summary in summaries.items():
        for change in summary.get("simulated_model", {}).get("changes", ()):
            users.setdefault(str(change), []).append(name)
    return [f"{joined(names)}: {change}" for change, names in users.items()]
