"""``simserve knee``, from a scenario file to a finished folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from simserve.knee.find import KIND, find_knees
from simserve.knee.results import Place, open_bench, print_json
from simserve.knee.study import open_study
from simserve.knee.table import print_knees
from simserve.tasks.metric_names import check_metric

RESULTS = Path("reports")


@dataclass(frozen=True)
class KneeOptions:
    """What was asked. ``out`` is by default ``reports/<scenario's name>-knee``; ``command`` is what the user typed."""

    scenario: Path
    overrides: tuple[str, ...] = ()
    metric: str = "e2e_s.mean"
    replications: int = 8
    loads: int = 12
    seed: int | None = None
    out: Path | None = None
    workers: int | None = None
    cluster: str | None = None
    calibration_noise: bool = True
    json: bool = False
    quiet: bool = False
    command: str = ""


def find_and_write(options: KneeOptions) -> Path:
    """Find the knees, write the folder, print the table (or the document); returns the page's path. Raises InputError.

    What was simulated stays in the folder, and the same command goes on from there.
    """
    check_metric(options.metric, "--metric")
    study = open_study(options.scenario, options.overrides, options.seed, options.replications)
    study = replace(study, calibration_noise=options.calibration_noise)
    out = options.out or RESULTS / f"{study.scenario.name}-knee"
    place = Place(out, KIND, options.workers, options.cluster, options.quiet, options.command)
    with open_bench(place) as bench:
        document = find_knees(study, bench.runner, options.metric, options.replications, options.loads)
        from simserve.report import render_knee

        page = bench.finish(document, study.scenario, render_knee)
    if options.json:
        print_json(document)
    elif not options.quiet:
        console = Console(file=sys.stdout, highlight=False)
        print_knees(document, console)
        console.print(Text(f"page: {page}"), soft_wrap=True)
    return page
