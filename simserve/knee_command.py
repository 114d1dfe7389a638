"""``simserve knee``: what the command line takes; the work is done in ``simserve.knee``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simserve.exit_codes import exit_codes, typed_command

KEPT = "what was simulated is kept; the same command goes on from there"
EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "simserve knee scenarios/skewed64.yaml\n\n"
    "simserve knee scenarios/chat.yaml --metric ttft_s.p99 --replications 16\n\n"
    "simserve knee scenarios/chat.yaml --set engine.max_num_seqs=32 --json | jq '.variants[].saturation'"
)


def knee(  # noqa: PLR0913, PLR0917 - one argument per option
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override one key, such as engine.max_num_seqs=16; repeatable."
        ),
    ] = None,
    metric: Annotated[str, typer.Option(help="Latency whose knee is looked for, such as ttft_s.p99.")] = "e2e_s.mean",
    replications: Annotated[int, typer.Option(min=1, help="Simulations of each load, each on other requests.")] = 8,
    loads: Annotated[int, typer.Option(min=4, max=200, help="Loads from low to near saturation.")] = 12,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the scenario's.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="reports/<scenario's name>-knee")
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
    json: Annotated[bool, typer.Option("--json", help="Print knee.json instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Find where load breaks each variant: saturation rate, load knee and batch knee, with intervals.

    The saturation rate is the largest load whose backlog does not grow, measured under a backlog and then tested. The
    load knee is where latency turns up (Kneedle, from 5 % to 95 % of saturation); in a closed loop, from one client on.
    The batch knee is the profile's: the last doubling of the batch that still gained √2 in throughput.
    """
    with exit_codes(KEPT):
        from simserve.knee.command import KneeOptions, find_and_write

        find_and_write(
            KneeOptions(
                scenario=scenario,
                overrides=tuple(overrides or ()),
                metric=metric,
                replications=replications,
                loads=loads,
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
