"""One point of a sweep: the values of its keys, laid over a scenario's plain data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from simserve.errors import ScenarioError
from simserve.scenario.axis_values import Scalar
from simserve.scenario.load import has_key, set_key
from simserve.scenario.messages import printable
from simserve.tasks.axes import Axis

Settings = dict[str, Scalar]
MAX_SETTINGS = 20_000


def grid(axes: Sequence[Axis]) -> list[Settings]:
    """Every combination of values, the last axis turning fastest; one empty setting without axes. Raises ScenarioError
    when there are more than ``MAX_SETTINGS``."""
    num = math.prod(len(axis.values) for axis in axes)
    if num > MAX_SETTINGS:
        raise ScenarioError(f"--over: must be at most {MAX_SETTINGS:,} settings in all (got {num:,})")
    keys = [axis.key for axis in axes]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))]


def apply_settings(
    data: Mapping[str, Any], settings: Mapping[str, object], typed: Collection[str] = ()
) -> dict[str, Any]:
    """Plain data with every key set, in order. A path means the working directory if its key is one of ``typed``, else
    the scenario file's folder.

    Raises ScenarioError when one setting makes another meaningless.
    """
    result = dict(data)
    for key, value in settings.items():
        result = set_key(result, key, value, key in typed)
    for key in settings:
        if not has_key(result, key):
            rule = f"another swept key names a kind that has no {key}; sweep only one of them"
            raise ScenarioError(printable(f"--over {key}: {rule}"))
    return result
