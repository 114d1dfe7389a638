"""``simserve compare``: what the command line takes; the work is done in ``simserve.compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simserve.exit_codes import exit_codes, typed_command

EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "simserve compare reports/skewed64 reports/sixteen\n\n"
    "simserve compare reports/skewed64 reports/skewed64 --variant-a static-paged --variant-b continuous-paged\n\n"
    "simserve compare reports/before reports/after --json | jq '.pairs[0].metrics.\"ttft_s.p99\"'"
)


def compare(  # noqa: PLR0913, PLR0917 - one argument per option
    run_a: Annotated[
        Path, typer.Argument(metavar="RUN_A", help="Folder of a finished run: the base.", show_default=False)
    ],
    run_b: Annotated[
        Path, typer.Argument(metavar="RUN_B", help="Folder of the run to set against it.", show_default=False)
    ],
    variant_a: Annotated[
        str | None, typer.Option(help="Compare this variant of A.", show_default="same names meet")
    ] = None,
    variant_b: Annotated[
        str | None, typer.Option(help="Compare this variant of B.", show_default="same names meet")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.", show_default="reports/<a>-vs-<b>")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print compare.json instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Say what changed from run A to run B, and by how much: ratios with intervals, as a table and a page."""
    with exit_codes("nothing was written"):
        from simserve.compare.command import CompareOptions, compare_folders

        compare_folders(
            CompareOptions(
                run_a=run_a,
                run_b=run_b,
                variant_a=variant_a,
                variant_b=variant_b,
                out=out,
                json=json,
                quiet=quiet,
                command=typed_command(),
            )
        )
