"""``simserve sweep``, from a scenario file to a folder with curves."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from simserve.manifest import manifest_head
from simserve.summary import to_json
from simserve.sweep.document import KIND, sweep_document
from simserve.sweep.files import FILES, write_files
from simserve.sweep.options import SweepOptions
from simserve.sweep.plan import Plan, build_plan
from simserve.sweep.reproduce import run_command
from simserve.sweep.run_reports import RUNS, check_runs, chosen_settings, write_run_reports
from simserve.sweep.table import print_sweep
from simserve.sweep.whole_runs import with_whole_runs
from simserve.tasks.executors import executor_for, num_cpus
from simserve.tasks.folder import StudyFolder, study_folder
from simserve.tasks.runner import Runner

RESULTS = Path("reports")


def run_sweep(options: SweepOptions) -> Path:
    """Simulate every point that is not kept already, write the folder, print the table; returns the folder.

    Everything that can be wrong with the input is found before anything runs. Raises InputError.
    """
    began, started = time.perf_counter(), datetime.now(UTC)
    messages = Console(stderr=True, quiet=options.quiet)
    with messages.status("checking every point"):
        plan = build_plan(options)
    folder = options.out or RESULTS / f"{plan.scenario.name}-sweep"
    with study_folder(folder, KIND, FILES, plan.scenario.name) as study:
        check_runs(plan, study.path / RUNS, folder / RUNS)
        document = _simulated(plan, options, study, messages)
        head = manifest_head(KIND, plan.scenario, options.command, started, time.perf_counter() - began)
        with messages.status("drawing the page"):
            write_files(study, document, {**head, "num_points": len(document["points"])})
    if options.json:
        sys.stdout.write(to_json(document))
    elif not options.quiet:
        console = Console(file=sys.stdout, highlight=False)
        print_sweep(document, console)
        seconds = time.perf_counter() - began
        console.print(Text(f"curves: {folder / 'sweep.html'}  ({seconds:.1f} s)"), soft_wrap=True)
    return folder


def _simulated(plan: Plan, options: SweepOptions, study: StudyFolder, messages: Console) -> dict[str, Any]:
    """The finished document, with the reports of its points written."""
    measured, drawn = plan.measured(), plan.drawn()
    is_done = all(task.key() in study.store for task in (*measured, *drawn))
    # Everything kept already needs no cluster.
    opened = executor_for(1) if is_done else executor_for(options.workers, options.cluster, _tell(messages))
    what = f"{len(plan.settings)} settings × {plan.config.replications}"
    with opened as executor, Runner(executor, study.store, messages) as runner:
        results = runner.run([*measured, *drawn], f"{what}, with noise of calibration" if drawn else what)
        runs, draws = with_whole_runs(plan, runner, results[: len(measured)], results[len(measured) :])
    commands = [run_command(plan, i, options.scenario, options.overrides) for i in range(len(plan.settings))]
    document = sweep_document(plan, runs, draws, commands)
    workers = options.workers or num_cpus()
    reports = study.path / RUNS
    pages = write_run_reports(plan, chosen_settings(plan, document), commands, reports, workers, messages)
    for i, point in enumerate(document["points"]):
        point["report"] = pages.get(i // plan.num_variants)
    return document


def _tell(messages: Console) -> Callable[[str], None]:
    return lambda text: messages.print(Text(text, style="dim"), soft_wrap=True)
