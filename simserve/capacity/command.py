"""``simserve capacity``, from a scenario file to a finished folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from simserve.capacity.cost import Question
from simserve.capacity.find import KIND, find_capacities
from simserve.capacity.optimize import Search, search_capacities
from simserve.capacity.row import Asked
from simserve.capacity.search import Effort
from simserve.capacity.slo import SloTargets, parse_slos
from simserve.capacity.table import print_capacities
from simserve.errors import InputError
from simserve.knee.results import Bench, Place, open_bench, print_json
from simserve.knee.study import Study, open_study
from simserve.scenario import Scenario, TenantsWorkload, TraceWorkload
from simserve.scenario.messages import printable
from simserve.tasks.axes import Axis, build_axes
from simserve.tasks.settings import grid
from simserve.workload.owners import with_limits
from simserve.workload.trace import read_trace

RESULTS = Path("reports")
STORAGE = "search.db"


@dataclass(frozen=True)
class CapacityOptions:
    """What was asked. ``out`` is by default ``reports/<scenario's name>-capacity``; ``storage`` a file in it."""

    scenario: Path
    overrides: tuple[str, ...] = ()
    slos: tuple[str, ...] = ()
    target_rate: float | None = None
    price: float | None = None
    over: tuple[str, ...] = ()
    search: int | None = None
    storage: str | None = None
    tolerance: float = 0.02
    replications: int = 4
    max_replications: int = 32
    seed: int | None = None
    out: Path | None = None
    workers: int | None = None
    cluster: str | None = None
    calibration_noise: bool = True
    json: bool = False
    quiet: bool = False
    command: str = ""


def find_and_write(options: CapacityOptions) -> Path:
    """Find the capacities, write the folder, print the table (or the document); returns the page's path.

    Raises InputError. What was simulated stays in the folder, and the same command goes on from there.
    """
    study = open_study(options.scenario, options.overrides, options.seed, options.replications)
    study = replace(study, calibration_noise=options.calibration_noise)
    slos, note = parse_slos(options.slos, study.scenario.slo, _tenants(study.scenario))
    most = max(options.replications, options.max_replications)
    effort = Effort(options.replications, most, options.tolerance, study.scenario.seed)
    asked = Asked(slos, Question(options.target_rate, options.price), effort)
    axes = _axes(study, options)
    out = options.out or RESULTS / f"{study.scenario.name}-capacity"
    place = Place(out, KIND, options.workers, options.cluster, options.quiet, options.command)
    with open_bench(place, STORAGE) as bench:
        document = _document(study, bench, asked, axes, options)
        document["notes"] = ([note] if note else []) + document["notes"]
        from simserve.report import render_capacity

        page = bench.finish(document, study.scenario, render_capacity)
    if options.json:
        print_json(document)
    elif not options.quiet:
        console = Console(file=sys.stdout, highlight=False)
        print_capacities(document, console)
        console.print(Text(f"page: {page}"), soft_wrap=True)
    return page


def _tenants(scenario: Scenario) -> Sequence[SloTargets]:
    """What each tenant of a workload, if there are any, was promised."""
    workload = scenario.workload
    if isinstance(workload, TenantsWorkload):
        return [tenant.slo for tenant in workload.tenants.values()]
    if not isinstance(workload, TraceWorkload):
        return []
    path = scenario.base_dir / workload.trace
    tenants = with_limits(read_trace(path, workload.format).tenants, workload.tenant_slos, path.name)
    return [] if tenants is None else tenants.each


def _document(study: Study, bench: Bench, asked: Asked, axes: list[Axis], options: CapacityOptions) -> dict[str, Any]:
    if options.search is None:
        settings = grid(axes) if axes else [{}]
        return find_capacities(study, bench.runner, asked, settings)
    storage = options.storage or f"sqlite:///{(bench.folder.path / STORAGE).as_posix()}"
    return search_capacities(study, bench.runner, asked, Search(options.search, tuple(axes), storage))


def _axes(study: Study, options: CapacityOptions) -> list[Axis]:
    """The axes of ``--over``. Raises InputError when one is the load itself, or when a search has none."""
    if options.search is not None and not options.over:
        raise InputError(
            "--search: needs something to search over; give --over KEY=VALUES, such as engine.max_num_seqs=8,16"
        )
    if options.storage is not None and options.search is None:
        raise InputError("--storage: is where a search keeps its trials; give --search N with it")
    axes = build_axes(study.data, study.scenario.source, {}, options.over)
    for axis in axes:
        if axis.key == study.axis.key:
            rule = "cannot be a setting, for it is the load whose largest value is looked for"
            raise InputError(printable(f"--over {axis.key}: {rule}; leave it out"))
    return axes
