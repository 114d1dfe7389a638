"""``simserve run``, from a scenario file to a finished run directory."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from simserve.manifest import build_manifest
from simserve.run_directory import OutputChoices, staged_folder, write_files
from simserve.scenario import load_scenario
from simserve.simulate import RunResult, simulate
from simserve.terminal import print_result, progress_bar

RESULTS = Path("reports")


@dataclass(frozen=True)
class RunOptions:
    """What was asked. ``out`` is by default ``reports/<scenario's name>``; ``command`` is what the user typed."""

    scenario: Path
    overrides: tuple[str, ...] = ()
    out: Path | None = None
    trace: bool = False
    report: bool = True
    quiet: bool = False
    command: str = ""


def run_scenario(options: RunOptions) -> Path:
    """Simulate, write the run directory, print the table; returns the folder. Raises InputError.

    Whether the folder can be written is settled before anything is simulated.
    """
    began, started = time.perf_counter(), datetime.now(UTC)
    scenario = load_scenario(options.scenario, options.overrides)
    folder = options.out or RESULTS / scenario.name
    messages = Console(stderr=True, quiet=options.quiet)
    with staged_folder(folder) as staging:
        with progress_bar(messages) as on_progress:
            result = simulate(scenario, on_progress)
        manifest = build_manifest(result, options.command, started, time.perf_counter() - began)
        with messages.status("writing the results"):
            write_files(result, manifest, staging, OutputChoices(options.report, options.trace))
    if not options.quiet:
        _print(result, folder, options, time.perf_counter() - began)
    return folder


def _print(result: RunResult, folder: Path, options: RunOptions, seconds: float) -> None:
    console = Console(file=sys.stdout, highlight=False)
    print_result(result, console)
    page = folder / ("report.html" if options.report else "summary.json")
    console.print(Text(f"{'report' if options.report else 'results'}: {page}  ({seconds:.1f} s)"), soft_wrap=True)
