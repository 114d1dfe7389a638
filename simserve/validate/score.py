"""Measured against predicted: signed errors, and the spread of the real engine's own runs beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from simserve.distributions import finite_or_none
from simserve.errors import ScenarioError
from simserve.validate.observed import Figures

Entry = dict[str, Any]
ROUNDING = 1e-12  # an error on the edge of the noise is within it
NOT_HELD = ("num_preemptions", "mean_batch_size")  # to --max-error, unless named


def score(measured: Sequence[Figures], predicted: Sequence[Figures], drawn: Sequence[Figures] = ()) -> dict[str, Entry]:
    """By dotted name: ``measured`` and ``predicted`` (means of the real runs and of the simulations), ``error``,
    ``noise``; with several real runs their least and largest figure as ``measured_range``; and where simulations were
    ``drawn`` from what another calibration might have measured, the middle 90 % of theirs as ``predicted_range``."""
    return {
        name: {
            **entry([run[name] for run in measured], [run[name] for run in predicted]),
            "predicted_range": _middle([run[name] for run in drawn]),
        }
        for name in predicted[0]
    }


def entry(values: Sequence[float | None], simulated: Sequence[float | None]) -> Entry:
    """One figure. ``error`` is predicted/measured − 1: null where either is missing, or measured is 0 and predicted is
    not. ``noise`` is half the range of the real runs over their mean; null with one run, or a mean of 0."""
    known = [value for value in values if value is not None]
    measured, predicted = _mean(known), _mean([value for value in simulated if value is not None])
    return {
        "measured": measured,
        "predicted": predicted,
        "error": _error(measured, predicted),
        "noise": _noise(known, measured),
        "measured_range": _range(known),
    }


def nested(entries: dict[str, Entry]) -> dict[str, Any]:
    """Dotted names to the objects of ``validation.json``."""
    tree: dict[str, Any] = {}
    for name, one in entries.items():
        *path, leaf = name.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[leaf] = one
    return tree


def flat(metrics: dict[str, Any]) -> dict[str, Entry]:
    """The objects of ``validation.json`` to dotted names."""
    found = {}
    for name, value in metrics.items():
        if "error" in value:
            found[name] = value
        else:
            found |= {f"{name}.{leaf}": one for leaf, one in value.items()}
    return found


def exceeding(entries: dict[str, Entry], max_error: float, only: Iterable[str] = ()) -> list[str]:
    """Figures whose error is beyond ``max_error`` and beyond the noise, by name; ``only`` those that are named (a whole
    latency by its own name), by default all but ``NOT_HELD``. Raises ScenarioError for a name that is none."""
    names = [name for name in entries if name not in NOT_HELD]
    wanted = list(only)
    if wanted:
        names = [name for one in wanted for name in entries if name == one or name.startswith(f"{one}.")]
        unknown = [one for one in wanted if not any(n == one or n.startswith(f"{one}.") for n in entries)]
        if unknown:
            known = ", ".join(entries)
            raise ScenarioError(f"--metric: must be a figure of the validation (got {unknown[0]!r}); known: {known}")
    return [name for name in names if is_beyond(entries[name], max_error)]


def is_beyond(one: Entry, limit: float) -> bool:
    """Whether the error is larger than the limit and than the real engine's own noise. A figure that is missing on one
    side alone is beyond any limit; one that neither has is not."""
    if one["error"] is None:
        return one["measured"] is not None and one["predicted"] != one["measured"]
    return bool(abs(one["error"]) > max(limit, one["noise"] or 0.0) + ROUNDING)


def _range(values: Sequence[float | None]) -> list[float] | None:
    """The least and the largest of several; None of fewer."""
    known = [value for value in values if value is not None]
    return [min(known), max(known)] if len(known) > 1 else None


def _middle(values: Sequence[float | None]) -> list[float] | None:
    """The 5th and the 95th percentile of several."""
    known = [value for value in values if value is not None]
    return np.quantile(known, [0.05, 0.95]).tolist() if len(known) > 1 else None


def _mean(values: Sequence[float]) -> float | None:
    """Their mean; a lone value, or equal ones, as they are."""
    if not values or min(values) == max(values):
        return values[0] if values else None
    return float(np.mean(values))


def _error(measured: float | None, predicted: float | None) -> float | None:
    if measured is None or predicted is None:
        return None
    if measured == 0:
        return 0.0 if predicted == 0 else None
    return finite_or_none(predicted / measured - 1)


def _noise(known: Sequence[float], measured: float | None) -> float | None:
    if len(known) < 2 or not measured:
        return None
    return float((max(known) - min(known)) / 2 / abs(measured))
