"""The real side: runs read from files, made by an engine in this process, or by a server behind a URL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from simserve.errors import RunError
from simserve.recorded.aggregates import RecordedAggregates
from simserve.recorded.benchmarks import FORMATS as BENCHMARKS
from simserve.recorded.benchmarks import read_benchmark
from simserve.recorded.engine_run import Clock, from_engine_run
from simserve.recorded.read import detect, read_recorded
from simserve.recorded.run import RecordedRun
from simserve.recorded.steps import EngineRun, write_engine_run
from simserve.request import RequestTable
from simserve.scenario import Scenario
from simserve.step_time.stretch import NS_PER_S
from simserve.validate.screen import problems

MAX_RUNS = 20
RUN_FILES = tuple(f"run-{i}.jsonl" for i in range(1, MAX_RUNS + 1))
OnRequests = Callable[[int], None]
ServeOn = Callable[[Scenario, RequestTable, OnRequests], EngineRun]
"""Serves a table's requests on a real engine set up as a scenario says, and tells how many have ended."""


def recorded_runs(paths: Sequence[Path], form: str) -> list[RecordedRun]:
    """Runs of files or folders. Raises InputError."""
    return [read_recorded(path, form) for path in paths]


def recorded_totals(paths: Sequence[Path], form: str) -> list[RecordedAggregates]:
    """Of files that keep no requests, their totals; empty where the first file keeps them. Raises InputError."""
    if not paths or paths[0].is_dir() or not paths[0].exists():
        return []
    if (detect(paths[0]) if form == "auto" else form) not in BENCHMARKS:
        return []
    totals = [read_benchmark(path) for path in paths]
    return [one for one in totals if isinstance(one, RecordedAggregates)] if _no_requests(totals) else []


def _no_requests(totals: Sequence[RecordedRun | RecordedAggregates]) -> bool:
    kinds = {type(one) for one in totals}
    if len(kinds) > 1:
        raise RunError("--measured: must be files that all keep their requests, or none of them (got both)")
    return RecordedAggregates in kinds


def engine_runs(
    serve: Callable[[OnRequests], EngineRun], num_runs: int, clock: Clock, folder: Path, console: Console
) -> list[RecordedRun]:
    """The same requests on a real engine, again and again; each run is kept in ``folder`` as it was recorded."""
    runs = []
    for i in range(num_runs):
        with console.status(f"run {i + 1} of {num_runs}") as status:

            def tell(num_ended: int, i: int = i) -> None:
                status.update(f"run {i + 1} of {num_runs}: {num_ended:,} requests are done")

            run = serve(tell)
        write_engine_run(folder / RUN_FILES[i], run)
        runs.append(from_engine_run(run, RUN_FILES[i], clock))
        length_s = runs[-1].end_ns.max() / NS_PER_S
        console.print(Text(f"run {i + 1}: {len(run.steps):,} steps, {length_s:.3f} s by its {clock} clock"))
    return runs


def require_sound(runs: Sequence[RecordedRun], console: Console) -> None:
    """Screen every run. Raises RunError with what is wrong: one problem in its own words, several after a line for
    each."""
    found = [problem for run in runs for problem in problems(run)]
    if len(found) == 1:
        raise RunError(found[0])
    if found:
        for problem in found:
            console.print(Text(f"problem: {problem}", style="bold red"), soft_wrap=True)
        raise RunError(f"{runs[0].source}: cannot be scored, for the {len(found)} reasons above")
