"""One unit of work of a study: every variant of one setting on one workload. Small, picklable, known by its key."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import simserve
from simserve.errors import InputError
from simserve.manifest import source_revision
from simserve.scenario import Scenario, parse_scenario
from simserve.step_time.profile_schema import load_profile

Measures = dict[str, Any]
_KNOWN: dict[str, str | None] = {}


@dataclass(frozen=True)
class Task:
    """A simulation to run: the scenario's plain ``data`` with every override and setting applied and no ``sweep`` key.

    ``seed`` stands for the scenario's own, so that replication r meets the same requests at every setting and in every
    variant (common random numbers). ``calibration_draw`` numbers a bootstrap draw of measured step times; None takes
    them as measured. No ``variants`` means all. ``warmup`` is "auto" or a share of the requests to cut. ``stop_early``
    ends a run whose backlog is proved to grow. ``source`` and ``base_dir`` serve messages and relative paths.
    """

    data: Mapping[str, Any]
    source: str
    base_dir: str
    seed: int
    calibration_draw: int | None = None
    variants: tuple[str, ...] = ()
    warmup: str | float = "auto"
    stop_early: bool = True

    def scenario(self) -> Scenario:
        """The validated scenario of this task. Raises ScenarioError."""
        return parse_scenario({**self.data, "seed": self.seed}, self.source, Path(self.base_dir))

    def key(self) -> str:
        """SHA-256 of all that the results depend on: the data, the content of the files it names, and the version of
        simserve (in a checkout its revision too). Where those files lie does not matter. Raises InputError when one
        cannot be read."""
        content = {
            "data": {**self.data, "seed": self.seed},
            "files": sorted(_digests(self.data, Path(self.base_dir))),
            "calibration_draw": self.calibration_draw,
            "variants": self.variants,
            "warmup": self.warmup,
            "stop_early": self.stop_early,
            "version": simserve.__version__,
            "revision": code_revision(),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def run_task(task: Task) -> dict[str, Measures]:
    """Simulate and measure every variant of a task; by variant. Raises InputError when some input is wrong."""
    from simserve.tasks.one_run import measured_variants

    return measured_variants(task)


def run_keyed(task: Task, key: str) -> dict[str, Measures]:
    """``run_task`` in a worker, which is where the results get their meaning: they are those of ``key`` only if this
    process has the same simserve and the same files as the one that made it. Raises InputError when it has not."""
    if task.key() != key:
        raise InputError(
            f"{task.source}: the worker on {platform.node()}: must have the same simserve and files as this command "
            "(its revision, or a trace, profile or model file at the same path, differs); make them the same there"
        )
    return run_task(task)


def _digests(data: Mapping[str, Any], base_dir: Path) -> Iterator[str]:
    """Digests of the profiles, operator tables, traces and model files that a scenario and its variants name."""
    overrides = data.get("variants") or {}
    for section in (data, *(each for each in overrides.values() if isinstance(each, Mapping))):
        profile = _at(section, "step_time", "profile")
        if isinstance(profile, str):
            located = base_dir / profile
            yield load_profile(located if "/" in profile or profile.endswith(".json") else profile).digest
        tables = _at(section, "step_time", "operators")
        if isinstance(tables, str):
            for path in sorted((base_dir / tables).rglob("*.*")):
                if path.is_file():
                    yield file_digest(path)
        tenants = _at(section, "workload", "tenants")
        traces = [_at(tenant, "trace") for tenant in (tenants.values() if isinstance(tenants, Mapping) else ())]
        for name in (_at(section, "workload", "trace"), *traces, section.get("model")):
            if isinstance(name, str) and (base_dir / name).is_file():
                yield file_digest(base_dir / name)


def code_revision() -> str | None:
    """The revision of the checkout that this process runs from, looked up once; null for an installed simserve."""
    if "revision" not in _KNOWN:
        _KNOWN["revision"] = source_revision(Path(simserve.__file__).parents[1])
    return _KNOWN["revision"]


def same_checkout(revision: str | None) -> None:
    """For a child of a process with this ``code_revision``: it is not looked up again, so that a commit in the middle
    of a study makes no difference."""
    _KNOWN["revision"] = revision


def _at(section: object, *keys: str) -> object:
    value = section
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, read once while the file stays as it is. Raises InputError."""
    try:
        stat = path.stat()
        return _digest_of(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from None


@lru_cache(maxsize=64)
def _digest_of(path: Path, mtime_ns: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
