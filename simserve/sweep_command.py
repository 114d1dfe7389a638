"""``simserve sweep``: a scenario at many settings, several times each. Parses; everything heavy is in ``sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from simserve.errors import InputError
from simserve.exit_codes import exit_codes, typed_command

EPILOG = (
    "[bold]Values[/bold]\n\n"
    "1:40:16 is 16 values from 1 to 40 in equal steps; 1:40:16:log in equal ratios; 8,16,32 a list of any values\n\n"
    "[bold]Examples[/bold]\n\n"
    "simserve sweep scenarios/chat.yaml --over workload.arrivals.rate_rps=1:40:16:log\n\n"
    "simserve sweep scenarios/chat.yaml --over workload.arrivals.rate_rps=1:40:8 --over engine.max_num_seqs=8,32\n\n"
    "simserve sweep scenarios/azure.yaml --over workload.rate_scale=0.25:4:9:log --replications 10\n\n"
    "simserve sweep scenarios/chat.yaml --over weights=bf16,int8,int4 --over attention.kv_heads=1,8,32\n\n"
    "simserve sweep scenarios/chat.yaml --over step_time.profile=a.json,b.json --cluster tcp://scheduler:8786"
)


def sweep(  # noqa: PLR0913, PLR0917 - one argument per option
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).", show_default=False)],
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="KEY=VALUES", help="A key and the values it takes (see below); repeatable."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one key at every point; repeatable."),
    ] = None,
    replications: Annotated[
        int | None, typer.Option(min=1, help="Simulations of each point, each on other requests.", show_default="5")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the scenario's.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="reports/<scenario's name>-sweep")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes to use.", show_default="one per CPU")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="local|ADDRESS",
            help="Use dask.distributed: start one here, or use the scheduler at an address such as tcp://host:8786.",
            show_default=False,
        ),
    ] = None,
    warmup: Annotated[
        str | None,
        typer.Option(help="Share of the requests to leave out first, such as 0.1.", show_default="auto: a tenth"),
    ] = None,
    calibration_noise: Annotated[
        bool | None,
        typer.Option(
            "--calibration-noise/--no-calibration-noise",
            help="Count the noise of measured step times in the intervals: twice as many simulations.",
            show_default="on",
        ),
    ] = None,
    early_stop: Annotated[
        bool | None,
        typer.Option(
            "--early-stop/--no-early-stop", help="End a simulation whose backlog is proved to grow.", show_default="on"
        ),
    ] = None,
    reports: Annotated[
        Literal["all", "some", "none"] | None,
        typer.Option(help="Points that get a report of their own.", show_default="some"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print sweep.json instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Simulate a scenario at many settings: curves of latency and throughput with intervals, knees, a Pareto front.

    Every result is kept as it comes; the same command goes on where an interrupted one stopped.
    """
    with exit_codes("what was simulated is kept; the same command goes on from there"):
        from simserve.sweep.command import run_sweep
        from simserve.sweep.options import SweepOptions

        seeds = () if seed is None else (f"seed={seed}",)
        run_sweep(
            SweepOptions(
                scenario=scenario,
                over=tuple(over or ()),
                overrides=(*(overrides or ()), *seeds),
                replications=replications,
                warmup=_warmup(warmup),
                calibration_noise=calibration_noise,
                early_stop=early_stop,
                reports=reports,
                out=out,
                workers=workers,
                cluster=cluster,
                json=json,
                quiet=quiet,
                command=typed_command(),
            )
        )


def _warmup(text: str | None) -> str | float | None:
    if text is None or text == "auto":
        return text
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 0.5:
        raise InputError(f"--warmup: must be auto, or a share of the requests from 0 to 0.5 (got {text})")
    return share
