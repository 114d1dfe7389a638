"""The ``simserve run`` command that replays one point of a sweep."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from simserve.errors import ScenarioError
from simserve.scenario.axis_values import Scalar
from simserve.scenario.yaml_file import parse_yaml
from simserve.sweep.plan import Plan
from simserve.tasks.axes import Axis
from simserve.tasks.settings import Settings

_PATH_KEYS = ("model", "step_time.profile", "step_time.operators", "workload.trace")


def run_command(plan: Plan, setting: int, scenario: Path, overrides: Sequence[str] = ()) -> str:
    """What to type for the first replication of a setting; ``scenario`` and ``overrides`` are what the user typed."""
    words = ["simserve", "run", str(scenario)]
    for override in overrides:
        if not override.lstrip().startswith(("sweep.", "seed=", "seed ")):
            words += ["--set", override]
    axes = {axis.key: axis for axis in plan.axes}
    settings: Settings = dict(plan.settings[setting])
    resample = _resample(plan, setting)
    if resample is not None:
        settings["workload.resample.block_requests"] = resample
    for key, value in settings.items():
        words += ["--set", f"{key}={_as_typed(value, axes.get(key), scenario)}"]
    return shlex.join([*words, "--seed", str(plan.scenario.seed)])


def _resample(plan: Plan, setting: int) -> int | None:
    block = (plan.data[setting]["workload"].get("resample") or {}).get("block_requests")
    return int(block) if block is not None else None


def _as_typed(value: Scalar, axis: Axis | None, scenario: Path) -> str:
    """A value as ``--set`` reads it; a path of the scenario file as it stands to the working directory."""
    if isinstance(value, str):
        if axis is not None and not axis.typed and axis.key.endswith(_PATH_KEYS) and (scenario.parent / value).exists():
            value = str(scenario.parent / value)
        return value if _reads_back(value) else json.dumps(value, ensure_ascii=False)
    return "null" if value is None else json.dumps(value)


def _reads_back(text: str) -> bool:
    try:
        return parse_yaml(text, "value") == text
    except ScenarioError:
        return False
