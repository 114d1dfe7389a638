"""The values of one axis of a sweep: ``1:40:16`` (equal steps), ``1:40:16:log`` (equal ratios), or ``8,16,32``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from simserve.errors import ScenarioError
from simserve.memory.sizes import parse_size
from simserve.scenario.messages import shown
from simserve.scenario.yaml_file import parse_yaml

Scalar = str | int | float | bool | None
Scale = Literal["linear", "log", "list"]
MAX_VALUES = 10_000
RANGE_FORM = "must be LOW:HIGH:NUM, with :log for equal ratios, or a list of values"
_RANGE = re.compile(r"\s*[-+.\d][^,\[\]{}'\"]*:")  # begins with a number, and a colon follows before any comma


@dataclass(frozen=True)
class AxisValues:
    """The values that a key takes, in order, and how they are spaced."""

    values: tuple[Scalar, ...]
    scale: Scale

    def rounded(self) -> AxisValues:
        """For a key that takes whole numbers: each value of a range rounded, repeats dropped."""
        if self.scale == "list":
            return self
        whole = dict.fromkeys(round(value) for value in self.values if isinstance(value, int | float))
        return replace(self, values=tuple(whole))


def parse_values(spec: object) -> AxisValues:
    """The values that a text or a list stands for. Raises ValueError: the rule that it breaks."""
    if isinstance(spec, str):
        return _range(spec) if _RANGE.match(spec) else _listed(_yaml_list(spec))
    if isinstance(spec, list):
        return _listed(spec)
    raise ValueError(f"{RANGE_FORM}; put a range in quotes, or YAML reads it as a time (got {shown(spec)})")


def _yaml_list(text: str) -> list[object]:
    try:
        values = parse_yaml(f"[{text}]", "value")
    except ScenarioError:
        raise ValueError(f"{RANGE_FORM} (got {shown(text)})") from None
    assert isinstance(values, list)
    return values


def _listed(values: list[object]) -> AxisValues:
    if not values:
        raise ValueError("must have at least one value")
    if len(values) > MAX_VALUES:
        raise ValueError(f"must have at most {MAX_VALUES:,} values (got {len(values):,})")
    scalars: list[Scalar] = []
    for value in values:
        if not isinstance(value, str | int | float | None):
            raise ValueError(f"must be a list of numbers, texts, true, false or null (one is {shown(value)})")
        if any(value == other and type(value) is type(other) for other in scalars):
            raise ValueError(f"must not repeat a value (got {shown(value)} twice)")
        scalars.append(value)
    return AxisValues(tuple(scalars), "list")


def _range(text: str) -> AxisValues:
    parts = [part.strip() for part in text.split(":")]
    scale: Scale = "log" if parts[3:] == ["log"] else "linear"
    if len(parts) not in (3, 4) or parts[3:] not in ([], ["log"], ["linear"]):
        raise ValueError(f"{RANGE_FORM} (got {shown(text)})")
    low, high = _number(parts[0], text), _number(parts[1], text)
    if not parts[2].isdecimal() or not 2 <= int(parts[2]) <= MAX_VALUES:
        raise ValueError(f"must have from 2 to {MAX_VALUES:,} values (got {shown(parts[2])} in {shown(text)})")
    if not low < high:
        raise ValueError(f"must go from a lower to a higher value (got {shown(text)})")
    if scale == "log" and low <= 0:
        raise ValueError(f"must begin above 0, for its ratios are equal (got {shown(text)})")
    return AxisValues(tuple(_spaced(low, high, int(parts[2]), scale)), scale)


def _spaced(low: float, high: float, num: int, scale: Scale) -> list[float]:
    """Both ends exactly; between them as few digits as tell the values apart in a table and in a command."""
    shares = [i / (num - 1) for i in range(1, num - 1)]
    if scale == "log":
        inner = [float(f"{low * math.exp(share * math.log(high / low)):.6g}") for share in shares]
    else:
        inner = [float(f"{low + share * (high - low):.12g}") for share in shares]
    return list(dict.fromkeys([low, *inner, high]))


def _number(text: str, whole: str) -> float:
    """An end of a range: a number, or a size such as 8GiB."""
    try:
        value = float(text)
    except ValueError:
        try:
            value = float(str(parse_size(text)))
        except ValueError:
            raise ValueError(f"{RANGE_FORM} (got {shown(whole)})") from None
    if not math.isfinite(value):
        raise ValueError(f"must have finite ends (got {shown(whole)})")
    return value
