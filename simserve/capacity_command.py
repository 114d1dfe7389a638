"""``simserve capacity``: what the command line takes; the work is done in ``simserve.capacity``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simserve.exit_codes import exit_codes, typed_command

KEPT = "what was simulated is kept; the same command goes on from there"
EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "simserve capacity scenarios/chat.yaml --slo ttft_p99=1s --slo tpot_p99=50ms\n\n"
    "simserve capacity scenarios/chat.yaml --slo attainment=99% --target-rate 20 --price 2.50\n\n"
    "simserve capacity scenarios/chat.yaml --slo ttft_p99=1s --price 2.50 --over engine.max_num_seqs=16,64,256\n\n"
    "simserve capacity scenarios/chat.yaml --slo ttft_p99=1s --search 30 --over engine.max_num_seqs=8:512:8:log"
)


def capacity(  # noqa: PLR0913, PLR0917 - one argument per option
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).", show_default=False)],
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=VALUE",
            help="Limit to hold: ttft, tpot, itl, e2e or queue_time with _mean, _p50, _p90, _p95 or _p99 "
            "(ttft_p99=1s, tpot_mean=50ms), or attainment=99%, or with tenants tenant_attainment=99%; repeatable.",
            show_default="the scenario's slo, at p99",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override one key, such as engine.max_num_seqs=16; repeatable."
        ),
    ] = None,
    target_rate: Annotated[
        float | None,
        typer.Option(min=1e-9, max=1e9, help="Requests/s to serve: how many replicas?", show_default=False),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, max=1e9, help="Price of a GPU-hour: what does it cost?", show_default=False)
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="A row for each value: 16,64,256, a range 8:64:8, or 8:512:7:log; repeatable.",
            show_default=False,
        ),
    ] = None,
    search: Annotated[
        int | None,
        typer.Option(min=1, help="Try so many settings of --over, chosen by optuna.", show_default="every one"),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Where optuna keeps its trials, such as sqlite:///search.db.", show_default="in --out"),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=1e-4, max=1.0, help="Half-width of the interval over the capacity, to stop at.")
    ] = 0.02,
    replications: Annotated[int, typer.Option(min=1, help="Simulations of each load, to begin with.")] = 4,
    max_replications: Annotated[int, typer.Option(min=1, help="Simulations of each load, at most.")] = 32,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the scenario's.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="reports/<scenario's name>-capacity")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes on this machine.", show_default="one per CPU")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="'local', or the address of a dask scheduler, such as tcp://host:8786.", show_default=False),
    ] = None,
    calibration_noise: Annotated[
        bool,
        typer.Option(
            "--calibration-noise/--no-calibration-noise",
            help="Count the noise of measured step times in the intervals.",
        ),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print capacity.json instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Find the largest load that holds every SLO, with its interval; then replicas and cost.

    Every variant, and every setting of --over, gets a row; rows are sorted by cost, or by capacity without a price.
    Requests that are never answered count as infinitely late. Replications are added until the interval is narrow.
    """
    with exit_codes(KEPT):
        from simserve.capacity.command import CapacityOptions, find_and_write

        find_and_write(
            CapacityOptions(
                scenario=scenario,
                overrides=tuple(overrides or ()),
                slos=tuple(slo or ()),
                target_rate=target_rate,
                price=price,
                over=tuple(over or ()),
                search=search,
                storage=storage,
                tolerance=tolerance,
                replications=replications,
                max_replications=max_replications,
                seed=seed,
                out=out,
                workers=workers,
                cluster=cluster,
                calibration_noise=calibration_noise,
                json=json,
                quiet=quiet,
                command=typed_command(),
            )
        )
