"""The axes of a sweep, from ``--over KEY=SPEC`` and the scenario's ``sweep:`` block, checked against the scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from simserve.errors import ScenarioError
from simserve.scenario import Scenario
from simserve.scenario.axis_values import AxisValues, Scalar, Scale, parse_values
from simserve.scenario.load import has_key, set_key
from simserve.scenario.merge import merge
from simserve.scenario.messages import did_you_mean, printable, shown

LOAD_KEYS = ("workload.arrivals.rate_rps", "workload.concurrency", "workload.rate_scale")
_NOT_SWEPT = {
    "seed": "replications already draw other requests; use --replications",
    "name": "it only says what reports call the scenario",
    "variants": "name one of its keys, such as variants.NAME.engine.max_num_seqs",
    "sweep": "it is about sweeps, not about what is simulated",
}


@dataclass(frozen=True)
class Axis:
    """A key and the values it takes, in order. ``typed``: on the command line, where a path means the working
    directory."""

    key: str
    values: tuple[Scalar, ...]
    scale: Scale
    typed: bool = False


def parse_over(texts: Sequence[str]) -> dict[str, AxisValues]:
    """Axes by key, of texts ``KEY=SPEC``. Raises ScenarioError."""
    axes: dict[str, AxisValues] = {}
    for text in texts:
        key, equals, spec = (part.strip() for part in text.partition("="))
        if not equals or not all(key.split(".")):
            raise ScenarioError(printable(f"--over {text}: must have the form key.path=values"))
        if key in axes:
            raise ScenarioError(printable(f"--over {key}: must be given once; put all values into one"))
        axes[key] = _parsed(spec, f"--over {key}")
    return axes


def build_axes(data: Mapping[str, Any], source: str, over: Mapping[str, object], texts: Sequence[str]) -> list[Axis]:
    """The axes of a scenario's ``sweep.over`` and of ``--over`` texts, which take the place of the same key's.

    ``data`` are the scenario's, without ``sweep``. Ranges of whole-number keys are rounded. Raises ScenarioError.
    """
    typed = parse_over(texts)
    axes = []
    for key, spec in {**over, **typed}.items():
        where = f"--over {key}" if key in typed else f"{source}: sweep.over.{key}"
        values = typed[key] if key in typed else _parsed(spec, where)
        _check(data, key, where)
        if _takes_whole_numbers(data, key):
            values = values.rounded()
        axes.append(Axis(key, values.values, values.scale, key in typed))
    return axes


def load_axis_of(axes: Sequence[Axis]) -> str | None:
    """The key that is the offered load (a rate, or clients in a closed loop), if one is swept."""
    keys = [axis.key for axis in axes if len(axis.values) > 1 and all(_is_number(value) for value in axis.values)]
    return next((key for key in LOAD_KEYS if key in keys), None)


def flat_notes(data: Mapping[str, Any], axes: Sequence[Axis]) -> list[str]:
    """For each axis and variant that has no such key (an allocator without watermark): that it stays the same."""
    notes = []
    for axis in (axis for axis in axes if not axis.key.startswith("variants.")):
        changed = set_key(data, axis.key, axis.values[0], axis.typed)
        for name, override in _overrides(data).items():
            if not has_key(merge(changed, override), axis.key):
                notes.append(f"{name} has no {axis.key}: it is the same at every value of it")
    return notes


def _parsed(spec: object, where: str) -> AxisValues:
    try:
        return parse_values(spec)
    except ValueError as error:
        raise ScenarioError(printable(f"{where}: {error}")) from None


def _check(data: Mapping[str, Any], key: str, where: str) -> None:
    """Refuse what is no single key of the scenario, and what a variant says itself."""
    first, *rest = key.split(".")
    if key in _NOT_SWEPT or first == "sweep":
        raise ScenarioError(printable(f"{where}: cannot be swept; {_NOT_SWEPT[first]}"))
    overrides = _overrides(data)
    if first == "variants":
        if rest[0] not in overrides or len(rest) < 2:
            raise ScenarioError(printable(f"{where}: unknown variant {shown(rest[0])} ({_variants(overrides, rest)})"))
        return
    for name, override in overrides.items():
        if has_key(override, key):
            rule = f"variant {shown(name)} sets it itself; sweep variants.{name}.{key}, or remove it there"
            raise ScenarioError(printable(f"{where}: {rule}"))


def _variants(overrides: Mapping[str, object], rest: Sequence[str]) -> str:
    if not overrides:
        return "the scenario has none"
    return did_you_mean(rest[0], overrides) if len(rest) > 1 else "name one of its keys too"


def _overrides(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    variants = data.get("variants")
    if not isinstance(variants, Mapping):
        return {}
    return {name: each for name, each in variants.items() if isinstance(each, Mapping)}


def _takes_whole_numbers(data: Mapping[str, Any], key: str) -> bool:
    """Whether a key refuses a fraction for being one: asked of the scenario's own rules."""
    probe, keys = set_key(data, key, 1.5), tuple(key.split("."))
    if keys[0] == "variants":
        probe, keys = merge(probe, _overrides(probe)[keys[1]]), keys[2:]
    try:
        Scenario.model_validate(probe)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            place = tuple(part for part in problem["loc"] if not str(part).startswith("<"))
            if place == keys and problem["type"] == "int_type":
                return True
    return False


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
