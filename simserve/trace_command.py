"""``simserve trace``: what the command line takes; the work is done in ``simserve.trace_tools``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simserve.exit_codes import exit_codes

app = typer.Typer(
    help="Look at traces, check them, convert, cut and scale them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A trace: csv, jsonl or parquet, gzipped or not.", show_default=False)
]
Out = Annotated[
    Path,
    typer.Argument(
        metavar="OUT",
        help="File to write in our own format; its name says how: .csv, .csv.gz, .jsonl, .jsonl.gz or .parquet.",
        show_default=False,
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="Whose columns it has, as workload.format of a scenario: azure, burstgpt, mooncake, bailian …; auto tells "
        "it from the columns.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT if there is such a file.")]
UNWRITTEN = "nothing was written"


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "simserve trace info AzureLLMInferenceTrace_conv.csv\n\n"
    "simserve trace info conversation_trace.jsonl.gz --json"
)
def info(
    file: File,
    format_: Format = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What is in a trace: rows, span, rate, burstiness, lengths, the bound on prefix hits, and every oddity counted."""
    with exit_codes("nothing was read"):
        from simserve.trace_tools import command

        command.info(file, command.known_format(format_), json)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "simserve trace check BurstGPT_1.csv\n\n"
    "simserve trace check conversation_trace.jsonl.gz --max-model-len 131072"
)
def check(
    file: File,
    format_: Format = "auto",
    max_model_len: Annotated[
        int | None,
        typer.Option(min=1, help="Also count the requests beyond so many tokens, prompt and output.", show_default="∞"),
    ] = None,
) -> None:
    """Look for what would make a replay mean something else: one line per finding; exit code 1 if there is any, 0 if
    there is none, 2 if it is no trace."""
    with exit_codes("nothing was read"):
        from simserve.trace_tools import command

        if command.check(file, command.known_format(format_), max_model_len):
            raise typer.Exit(1)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "simserve trace convert AzureLLMInferenceTrace_conv.csv conv.parquet\n\n"
    "simserve trace convert conversation_trace.jsonl.gz conversation.csv.gz --format mooncake"
)
def convert(file: File, out: Out, format_: Format = "auto", overwrite: Overwrite = False) -> None:
    """Write a trace in our own format: the same requests, to the nanosecond, with all that is known of them."""
    with exit_codes(UNWRITTEN):
        from simserve.trace_tools import command

        command.convert(file, out, command.known_format(format_), overwrite)
