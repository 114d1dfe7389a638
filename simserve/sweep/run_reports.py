"""Reports of single points: an ordinary run directory each, of the first replication, all variants side by side."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from simserve.errors import OutputError
from simserve.manifest import KIND, build_manifest
from simserve.run_directory import OutputChoices, staged_folder, write_files
from simserve.simulate import simulate
from simserve.sweep.plan import Plan
from simserve.tasks.executors import executor_for
from simserve.tasks.progress import task_bar
from simserve.tasks.task import Task
from simserve.tasks.window import in_window

RUNS = "runs"
MAX_REPORTS = 24  # of "some": as many settings all get one; more, and only the telling ones do


@dataclass(frozen=True)
class RunJob:
    """One run directory to write into ``folder``; ``command`` is what would make it again."""

    task: Task
    folder: Path
    command: str


def chosen_settings(plan: Plan, document: Mapping[str, Any]) -> list[int]:
    """Settings that get a report: by ``reports``, all, none, or (where there are many) the first and the last of each
    curve, those around its knee, and where it saturates."""
    everything = list(range(len(plan.settings)))
    if plan.config.reports == "none":
        return []
    if plan.config.reports == "all" or len(everything) <= MAX_REPORTS:
        return everything
    chosen = {0, len(everything) - 1} if not document["curves"] else set()
    for curve in document["curves"]:
        settings = [i // plan.num_variants for i in curve["points"]]
        loads = [plan.settings[i][plan.load_axis or ""] for i in settings]
        chosen |= {settings[0], settings[-1], *_around(curve, settings, loads)}
    return sorted(chosen)


def _around(curve: Mapping[str, Any], settings: Sequence[int], loads: Sequence[Any]) -> list[int]:
    """The settings on both sides of the knee, and of where the backlog begins to grow."""
    marks = [curve["knee"]["value"] if curve["knee"] else None, curve["saturated_from"]]
    found = []
    for mark in (mark for mark in marks if mark is not None):
        above = next((k for k, load in enumerate(loads) if load >= mark), len(loads) - 1)
        found += [settings[max(0, above - 1)], settings[above]]
    return found


def check_runs(plan: Plan, folder: Path, shown: Path) -> None:
    """Refuse a folder in which somebody else's run stands where this sweep may write one. Raises OutputError."""
    for name in (f"{i:04d}" for i in range(len(plan.settings)) if plan.config.reports != "none"):
        if (folder / name).exists() and not _is_of_a_sweep(folder / name):
            rule = "must be a run that a sweep wrote, or not there (it is something else); choose another --out"
            raise OutputError(f"{shown / name}: {rule}")


def write_run_reports(
    plan: Plan, settings: Sequence[int], commands: Sequence[str], folder: Path, num_workers: int, console: Console
) -> dict[int, str]:
    """Write ``folder/0003/`` for each setting, on processes of this machine; where an equal one stands, it stays.

    Others are removed. Returns, by setting, the page's path from the sweep's own folder.
    """
    names = {i: f"{i:04d}" for i in settings}
    _remove_others(folder, set(names.values()))
    jobs = [RunJob(plan.task(i, 0), folder / name, commands[i]) for i, name in names.items()]
    todo = [job for job in jobs if not _is_written(job)]
    if todo:
        folder.mkdir(exist_ok=True)
        with (
            executor_for(min(num_workers, len(todo))) as executor,
            task_bar(console, "reports of points", len(jobs), len(jobs) - len(todo)) as advance,
            closing(in_window(executor, write_run, {job.folder: (job,) for job in todo})) as written,
        ):
            for _ in written:
                advance()
    return {i: f"{folder.name}/{name}/report.html" for i, name in names.items()}


def write_run(job: RunJob) -> None:
    """Simulate one setting and write its run directory. Raises InputError."""
    began, started = time.perf_counter(), datetime.now(UTC)
    result = simulate(job.task.scenario())
    manifest = build_manifest(result, job.command, started, time.perf_counter() - began)
    with staged_folder(job.folder) as staging:
        write_files(result, {**manifest, "point_key": job.task.key()}, staging, OutputChoices())


def _is_written(job: RunJob) -> bool:
    with suppress(OSError, ValueError, AttributeError):
        manifest = json.loads((job.folder / "manifest.json").read_text(encoding="utf-8"))
        is_same = manifest.get("point_key") == job.task.key() and manifest.get("command") == job.command
        return is_same and (job.folder / "report.html").is_file()
    return False


def _remove_others(folder: Path, names: set[str]) -> None:
    """Runs that a sweep wrote of settings that no longer are; whatever else lies there stays."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        is_partial = entry.name.startswith(".") and entry.name.endswith(".partial")
        if is_partial or (entry.name not in names and _is_of_a_sweep(entry)):
            shutil.rmtree(entry, ignore_errors=True)
    if not names:
        with suppress(OSError):
            folder.rmdir()


def _is_of_a_sweep(folder: Path) -> bool:
    """A run whose manifest names the point of a sweep; a user's own run has none."""
    with suppress(OSError, ValueError, AttributeError):
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return manifest.get("kind") == KIND and "point_key" in manifest
    return False
