"""``simserve replay``: what the command line takes; the work is done in ``simserve.replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from simserve.exit_codes import INTERRUPTED, exit_codes, typed_command

EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "simserve replay http://127.0.0.1:8000 conversations.csv --limit 1000 --rate-scale 0.5\n\n"
    "simserve replay http://127.0.0.1:8000 scenarios/skewed64.yaml --set workload.arrivals.rate_rps=2\n\n"
    "simserve replay https://example.org trace.jsonl --served-model my-model --max-attempts 4 --ttft-timeout-s 10\n\n"
    "simserve replay http://127.0.0.1:8000 trace.csv --json | jq .ttft_s.p99"
)


def replay(  # noqa: PLR0913, PLR0917 - one argument per option
    url: Annotated[str, typer.Argument(metavar="URL", help="Of an OpenAI-compatible server.", show_default=False)],
    source: Annotated[
        Path, typer.Argument(metavar="TRACE_OR_SCENARIO", help="What to send, and when.", show_default=False)
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one key of a scenario; repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the scenario's.", show_default=False)] = None,
    trace_format: Annotated[str, typer.Option("--format", metavar="NAME", help="Whose columns a trace has.")] = "auto",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Send only the first so many requests.", show_default=False)
    ] = None,
    rate_scale: Annotated[float, typer.Option(help="2.0 sends the requests twice as fast.")] = 1.0,
    served_model: Annotated[
        str | None, typer.Option(help="Name to ask the server for.", show_default="the only one it lists")
    ] = None,
    endpoint: Annotated[
        Literal["auto", "completions", "chat"],
        typer.Option(help="auto takes completions where it is there: prompts of token ids have exact lengths."),
    ] = "auto",
    vocab_size: Annotated[
        int | None,
        typer.Option(min=16, help="Draw token ids from the middle of so many.", show_default="ids 260 to 999"),
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(help="Give an attempt up without its whole answer.", show_default="the scenario's, or 600"),
    ] = None,
    ttft_timeout_s: Annotated[
        float | None,
        typer.Option(help="Give an attempt up without its first token.", show_default="the scenario's, or never"),
    ] = None,
    stall_timeout_s: Annotated[float, typer.Option(help="Give up a stream that fell silent for so long.")] = 60.0,
    max_attempts: Annotated[
        int | None,
        typer.Option(min=1, max=20, help="Send a request so often, at most.", show_default="the scenario's, or 1"),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Sent to the server, kept nowhere.", show_default="$SIMSERVE_API_KEY")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="reports/<name>-replay")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Also write requests.csv.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print replay.json instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Send requests to a running server, each at its own time whatever became of the others, and measure the answers.

    Ctrl-C keeps what was measured. Prompts are random, alike only where a trace says so; output lengths are forced
    where the server lets them be.
    """
    with exit_codes("nothing was written"):
        from simserve.replay.command import ReplayOptions
        from simserve.replay.command import replay as run
        from simserve.replay.source import SourceChoices

        replayed = run(
            ReplayOptions(
                url=url,
                source=SourceChoices(source, tuple(overrides or ()), seed, trace_format, limit, rate_scale),
                served_model=served_model,
                endpoint=None if endpoint == "auto" else endpoint,
                vocab_size=vocab_size,
                api_key=api_key,
                timeout_s=timeout_s,
                ttft_timeout_s=ttft_timeout_s,
                stall_timeout_s=stall_timeout_s,
                max_attempts=max_attempts,
                out=out,
                csv=csv,
                json=json,
                quiet=quiet,
                command=typed_command(),
            )
        )
    if replayed.interrupted:
        typer.echo(f"interrupted: what was measured is kept in {replayed.folder}", err=True)
        raise typer.Exit(INTERRUPTED)
