"""What made a result: written beside it, so that anyone can tell what it came from and make it again.

Everything that differs between two runs of the same scenario and seed (dates, wall time, versions) is here and nowhere
else. It holds no path of the machine but those that the user typed.
"""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import simserve
from simserve.step_time.profile_schema import content_digest

if TYPE_CHECKING:
    from simserve.scenario import Scenario
    from simserve.simulate import RunResult, VariantResult
    from simserve.step_time import StepTime

SCHEMA_VERSION = 1
KIND = "simserve run"
PACKAGES = ("simpy", "numpy", "pandas", "pyarrow", "pydantic", "altair", "vl-convert-python")


def build_manifest(result: RunResult, command: str, started: datetime, wall_time_s: float) -> dict[str, Any]:
    """The content of ``manifest.json``.

    ``command`` is what the user typed. Digests are SHA-256: of the resolved scenario, and of a measured profile's
    content, whatever the layout of their files (null for step times that no profile gives).
    """
    return {
        **manifest_head(KIND, result.scenario, command, started, wall_time_s),
        "workload_notes": list(result.workload.notes),
        "variants": {name: _variant(variant) for name, variant in result.variants.items()},
    }


def manifest_head(kind: str, scenario: Scenario, command: str, started: datetime, wall_time_s: float) -> dict[str, Any]:
    """What the manifest of any ``kind`` of result begins with: versions, command, when, and the scenario."""
    return {
        "kind": kind,
        "schema_version": SCHEMA_VERSION,
        "simserve_version": simserve.__version__,
        "revision": source_revision(Path(simserve.__file__).parents[1]),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        "platform": f"{platform.system()} {platform.machine()}",
        "command": command,
        "started": started.isoformat(timespec="seconds"),
        "wall_time_s": round(wall_time_s, 3),
        "seed": scenario.seed,
        "scenario": scenario.name,
        "scenario_digest": scenario_digest(scenario),
        "resolved_scenario": resolved_scenario(scenario),
    }


def scenario_digest(scenario: Scenario) -> str:
    """SHA-256 of a scenario with every default filled in."""
    return content_digest(resolved_scenario(scenario))


def resolved_scenario(scenario: Scenario) -> dict[str, Any]:
    """A scenario as plain data, every default filled in, without its ``sweep``, which no run reads; paths below the
    working directory are shown from there, for where that lies is the machine's business."""
    prefix = f"{Path.cwd()}/"
    data = scenario.model_dump(mode="json", exclude={"sweep"})
    return {key: _without_prefix(value, prefix) for key, value in data.items()}


class HasStepTime(Protocol):
    """A variant's result, or the parts that will run it."""

    @property
    def step_time(self) -> StepTime: ...


def step_time_entry(variant: HasStepTime) -> dict[str, Any]:
    """Name, kind, device and error of a variant's step times, as ``summary.json`` and the manifest show them."""
    source = variant.step_time.source
    return {
        "name": source.name,
        "kind": source.kind,
        "device": source.device,
        "calibrated": source.calibrated,
        "holdout_mape": source.holdout_mape,
    }


def source_revision(checkout: Path) -> str | None:
    """Git revision of the checkout that the code runs from, ``+dirty`` when tracked files differ; null elsewhere.

    Only a ``.git`` in that very folder counts: an installed package must not report the repository around it.
    """
    if not (checkout / ".git").exists():
        return None
    revision = _git(checkout, "rev-parse", "HEAD")
    if not revision:
        return None
    return f"{revision}+dirty" if _git(checkout, "status", "--porcelain", "--untracked-files=no") else revision


def _variant(variant: VariantResult) -> dict[str, Any]:
    return {
        "scenario_digest": scenario_digest(variant.scenario),
        "resolved_scenario": resolved_scenario(variant.scenario),
        "simulated_model": variant.model.entry(),
        "step_time": {**step_time_entry(variant), "digest": variant.step_time.source.digest},
    }


def _without_prefix(value: object, prefix: str) -> object:
    if isinstance(value, dict):
        return {key: _without_prefix(inner, prefix) for key, inner in value.items()}
    return value.removeprefix(prefix) if isinstance(value, str) else value


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
