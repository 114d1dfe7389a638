"""What studies say in words: settings, loads, where step times come from, and the warnings above the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.headline import Badge
from simserve.report.study_measures import Measure, interval_of
from simserve.report.words import NBSP, dig, joined, share

StepTimes = Mapping[str, Mapping[str, Any]]
ALL_EQUAL = "settings of the scenario"
_OF_DISTRIBUTIONS = ("fixed", "mean", "sigma", "low", "high", "max", "cv")
_LOADS = {
    "rate_rps": "requests/s offered",
    "concurrency": "clients at once",
    "rate_scale": "times the trace's own rate",
}


def load_measure(key: str) -> Measure:
    """The load by its scenario key."""
    return Measure("load", _LOADS.get(key.rpartition(".")[2], key))


def told_load(load: Mapping[str, Any]) -> Measure:
    """The load as a document words it: its label, with its unit where the label does not say it."""
    label, unit = str(load["label"]), str(load["unit"] or "")
    return Measure("load", label if unit in label else f"{label}, {unit}")


def settings_text(settings: Mapping[str, Any], load_axis: str | None = None) -> str:
    """``max_num_seqs 8, block_size 16``: the settings besides the load, keys cut to their last word where clear."""
    others = {key: value for key, value in settings.items() if key != load_axis}
    if not others:
        return ALL_EQUAL
    last = [last_words(key) for key in others]
    named = {key: word if last.count(word) == 1 else key for key, word in zip(others, last, strict=True)}
    return ", ".join(f"{named[key]}{NBSP}{_value(value)}" for key, value in others.items())


def last_words(key: str) -> str:
    """The last word of a key, and the one before where it is that of a distribution: ``output_tokens.fixed``."""
    words = key.split(".")
    return ".".join(words[-2:] if words[-1] in _OF_DISTRIBUTIONS else words[-1:])


def source_words(source: Mapping[str, Any]) -> str:
    """Where a variant's step times come from and how far off they are known to be."""
    error = dig(source, "holdout_mape")
    if source["calibrated"]:
        known = f"held-out error {share(error)}" if error is not None else "held-out error not known"
        return f"measured: {source['name']} on {source['device']}, {known}"
    checked = f"; off by {share(error)} on average where it was checked" if error is not None else ""
    return f"estimated by {source['name']} for {source['device']}{checked}"


def study_badges(step_times: StepTimes, points: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Badge]:
    """Step times that nobody measured, and steps outside what was measured. ``points`` are (variant, metrics)."""
    users: dict[str, list[str]] = {}
    for variant, source in step_times.items():
        if not source["calibrated"]:
            users.setdefault(str(source["name"]), []).append(variant)
    found = [
        Badge("uncalibrated", f"{joined(names)}: step times of {source} are estimated, not measured.")
        for source, names in users.items()
    ]
    outside: dict[str, float] = {}
    for variant, metrics in points:
        part = dig(interval_of(metrics, "extrapolated_step_share"), "value") or 0.0
        if part > 0:
            outside[variant] = max(part, outside.get(variant, 0.0))
    if outside:
        named = joined([f"{share(part)} of the steps of {variant}" for variant, part in outside.items()])
        found.append(Badge("extrapolated", f"Up to {named} lie outside the range that was measured."))
    return found


def _value(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return "none" if value is None else str(value)
