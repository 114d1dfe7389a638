"""``simserve trace``: what the command line takes; the work is done in ``simserve.trace_tools``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simserve.exit_codes import exit_codes

app = typer.Typer(
    help="Look at traces, check them, convert, cut and scale them, and fit generators to them.",
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


@app.command(
    "slice",
    epilog="[bold]Examples[/bold]\n\n"
    "simserve trace slice AzureLLMInferenceTrace_conv.csv busy.csv --from 30min --to 40min\n\n"
    "simserve trace slice BurstGPT_1.csv first.parquet --head 1000",
)
def slice_(  # noqa: PLR0913, PLR0917 - one argument per option
    file: File,
    out: Out,
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Keep what arrives then or later, from the first arrival.")
    ] = "0",
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Keep what arrives before.", show_default="the end")
    ] = None,
    head: Annotated[
        int | None, typer.Option(min=1, help="Of these, keep the first so many.", show_default="all")
    ] = None,
    format_: Format = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Keep a part of a trace, by time and number. Times are such as 90, 90s, 10min, 2h or 1d; the first request that is
    kept arrives at 0."""
    with exit_codes(UNWRITTEN):
        from simserve.trace_tools import command

        command.slice_(file, out, command.known_format(format_), overwrite, command.Part(begin, end, head))


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "simserve trace scale AzureLLMInferenceTrace_conv.csv twice.csv --rate 2\n\n"
    "simserve trace scale week.csv.gz tenth.parquet --rate 0.1 --seed 7\n\n"
    "simserve trace scale conversation_trace.jsonl.gz more.jsonl --rate 1.5 --shift 2min --same-prompts"
)
def scale(  # noqa: PLR0913, PLR0917 - one argument per option
    file: File,
    out: Out,
    rate: Annotated[
        str, typer.Option(metavar="RATIO", help="How many times as many requests: 0.5, 2, ×2.", show_default=False)
    ],
    seed: Annotated[int, typer.Option(min=0, help="Who is left out, and where copies lie.")] = 0,
    shift: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How far copies are shifted at most; 0 lays every burst over itself.",
            show_default="a tenth of the span",
        ),
    ] = None,
    same_prompts: Annotated[
        bool, typer.Option("--same-prompts", help="Copies ask the very prompts of the trace: they hit its prefixes.")
    ] = False,
    format_: Format = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Offer more or less of a trace in the same time: what more or fewer people of the same kind would send.

    Below 1 each request is kept by a coin; above, shifted copies of the trace are laid over it, the last one thinned.
    Sessions stay whole. (Squeezing time instead, bursts and all, is workload.rate_scale of a scenario.)
    """
    with exit_codes(UNWRITTEN):
        from simserve.trace_tools import command

        scaling = command.Scaling(rate, seed, shift, same_prompts)
        command.scale(file, out, command.known_format(format_), overwrite, scaling)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "simserve trace fit AzureLLMInferenceTrace_conv.csv --out conv-like.yaml\n\n"
    "simserve trace fit BurstGPT_1.csv --by Model --by 'Log Type' --out tenants.yaml\n\n"
    "simserve trace fit BurstGPT_1.csv --windows 24 --json"
)
def fit(  # noqa: PLR0913, PLR0917 - one argument per option
    file: File,
    out: Annotated[
        Path | None, typer.Option("--out", help="YAML file to write the section to.", show_default="printed")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Fit a tenant for each client, by the values of this column of the file, or of several together.",
            show_default="one generator for all",
        ),
    ] = None,
    clients: Annotated[
        int, typer.Option(min=1, max=999, help="With --by: the clients of most requests; all others are one tenant.")
    ] = 20,
    windows: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Windows with a rate and cv each.",
            show_default="200 requests in each, or fewer where that is far nearer",
        ),
    ] = None,
    format_: Format = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print the section and its distances as JSON.")] = False,
) -> None:
    """Fit a generator to a trace, as the workload: section of a scenario, and show how well it fits.

    Arrivals get a rate and cv per window (gamma or Weibull gaps, whichever is nearer), lengths a lognormal or some
    percentiles, and a rank correlation or a table of which prompts have which answers. Where turns wait for the answer
    before them, sessions are fitted. Distances are those of one draw, beside what two draws of the generator differ by.
    """
    with exit_codes("nothing was written"):
        from simserve.trace_tools import command, fit_command

        asked = fit_command.Asked(windows, by or (), clients)
        fit_command.fit_trace(file, out, command.known_format(format_), asked, json)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "simserve trace servegen reason_deepseek-r1.tar.gz --from 14h --to 15h --rate 20 --out reasoners.yaml\n\n"
    "simserve trace servegen ServeGen/data/language/m-large --clients 50 --json"
)
def servegen(  # noqa: PLR0913, PLR0917 - one argument per option
    pool: Annotated[
        Path,
        typer.Argument(
            metavar="POOL", help="A folder of chunk-N-trace.csv and chunk-N-dataset.json, or a tar archive."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="YAML file to write the section to.", show_default="printed")
    ] = None,
    begin: Annotated[str, typer.Option("--from", metavar="TIME", help="Begin so long after the day does.")] = "0",
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="End there.", show_default="the end of the day")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=1e-6, max=1e6, help="Requests per second of all together, on average.", show_default="the pool's"
        ),
    ] = None,
    clients: Annotated[
        int, typer.Option(min=1, max=999, help="The clients who send most; all others are one tenant.")
    ] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print the section and its tenants as JSON.")] = False,
) -> None:
    """Turn a pool of ServeGen's clients into the tenants of a scenario: rate and cv per window, lengths of each.

    A client has one distribution of prompts and one of answers, those of each part of its day weighted by what it sends
    then; the two are drawn apart, as ServeGen draws them.
    """
    with exit_codes("nothing was written"):
        from simserve.trace_tools import pool_command

        pool_command.write_tenants(pool, out, pool_command.AskedPool(begin, end, clients, rate), json)
