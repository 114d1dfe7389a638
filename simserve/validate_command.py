"""``simserve validate``: what the command line takes; the work is done in ``simserve.validate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simserve.exit_codes import exit_codes, typed_command

if TYPE_CHECKING:
    from simserve.validate.command import Replay
    from simserve.validate.in_process import EngineName, RealEngine

EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "simserve validate scenarios/validation/vllm-rtx4090.yaml --measured requests.jsonl --set step_time.operators=tp1 "
    "--set workload.trace=sharegpt.jsonl.gz\n\n"
    "simserve validate chat.yaml --measured run-1.csv --measured run-2.csv --max-error 0.05\n\n"
    "simserve validate scenarios/validation/skewed64-engines.yaml --variant transformers --engine transformers "
    "--calibrate\n\n"
    "simserve validate chat.yaml --url http://127.0.0.1:8000 --runs 3 --json | jq .metrics.ttft_s.mean"
)
OVER_THE_LIMIT = 1


def validate(  # noqa: PLR0913, PLR0917 - one argument per option
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).", show_default=False)],
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A recorded run: per-request stamps (csv, jsonl, parquet), or the folder of simserve replay; "
            "repeatable, for several runs of the same requests.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        Literal["transformers", "generate", "vllm"] | None,
        typer.Option(
            help="Run a real engine: transformers' continuous batching, its static generate, or vLLM.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Replay on the OpenAI-compatible server running there.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one key of the scenario; repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the scenario's.", show_default=False)] = None,
    variant: Annotated[
        str | None, typer.Option(help="Which variant, where the scenario has several.", show_default=False)
    ] = None,
    recorded_format: Annotated[
        str, typer.Option("--format", metavar="NAME", help="Of --measured; auto tells it from the content.")
    ] = "auto",
    requests: Annotated[
        Literal["matched", "scenario", "recorded"],
        typer.Option(
            help="matched: the scenario's requests when the recorded ones came; scenario: its times too; recorded: the "
            "run's own lengths and times."
        ),
    ] = "matched",
    runs: Annotated[
        int,
        typer.Option(
            min=1,
            help="How often an engine (each time in a process of its own, warmed up) or a server serves the requests: "
            "its noise.",
        ),
    ] = 3,
    draws: Annotated[
        int,
        typer.Option(
            min=0, help="Simulate so often more, on what another calibration might have measured (a profile)."
        ),
    ] = 20,
    clock: Annotated[
        Literal["cpu", "wall"], typer.Option(help="Of an engine in process: its CPU seconds, or the wall's.")
    ] = "cpu",
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="First time the engine's steps within what the scenario can ask, in processes apart from the runs; "
            "keep the profile.",
        ),
    ] = False,
    engine_python: Annotated[str | None, typer.Option(help="The Python that has vLLM.", show_default=False)] = None,
    served_model: Annotated[
        str | None, typer.Option(help="Name to ask the server for.", show_default="the only one it lists")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Sent to the server, kept nowhere.", show_default="$SIMSERVE_API_KEY")
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(help="Exit code 1 when an error is beyond this and beyond the noise; 0.05 is 5 %."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Hold only this figure to --max-error, such as ttft_s.mean or e2e_s; repeatable.",
            show_default="all but batch size and preemptions",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="reports/<scenario's name>-validation")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print validation.json instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Hold a simulation against a real run of the same requests: errors by metric, with the real one's own noise.

    The real run is a file, an engine that runs here, or a server; step times are those of the scenario, made before.
    """
    with exit_codes("nothing was written"):
        from simserve.validate.command import ValidateOptions
        from simserve.validate.command import validate as run

        seeds = () if seed is None else (f"seed={seed}",)
        texts = (*(overrides or ()), *seeds)
        real = None if engine is None else _engine(engine, clock, engine_python)
        _refuse_stray(
            engine, url, calibrate=calibrate, engine_python=engine_python, served_model=served_model, api_key=api_key
        )
        verdict = run(
            ValidateOptions(
                scenario=scenario,
                overrides=texts,
                variant=variant,
                measured=tuple(measured or ()),
                format=recorded_format,
                requests=requests,
                serve=real,
                calibrate=real.calibrate if real is not None and calibrate else None,
                replay=None if url is None else _replay(url, scenario, texts, served_model, api_key, json or quiet),
                num_runs=runs,
                clock=clock,
                num_draws=draws,
                max_error=max_error,
                metrics=tuple(metric or ()),
                out=out,
                json=json,
                quiet=quiet,
                command=_without_secrets(typed_command(), url, api_key),
            )
        )
    if verdict.exceeding:
        if not quiet:
            typer.echo(f"over the limit of {max_error:g}: {', '.join(verdict.exceeding)}", err=True)
        raise typer.Exit(OVER_THE_LIMIT)


def _without_secrets(command: str, url: str | None, api_key: str | None) -> str:
    """What was typed, without the key and without whatever password the URL holds."""
    if url is None:
        return command
    from simserve.replay.address import parse_address
    from simserve.replay.server import Server

    server = Server(parse_address(url), api_key)
    return server.scrub(command.replace(url, server.address.url))


def _refuse_stray(engine: str | None, url: str | None, **given: object) -> None:
    """Raises ScenarioError for an option that belongs to a way of measuring that was not chosen."""
    from simserve.errors import ScenarioError

    of_engine, of_url = (engine, "--engine"), (url, "--url")
    owners = {"calibrate": of_engine, "engine_python": of_engine, "served_model": of_url, "api_key": of_url}
    for name, value in given.items():
        chosen, owner = owners[name]
        if value and chosen is None:
            raise ScenarioError(f"--{name.replace('_', '-')}: belongs to {owner}; give that, or leave it out")


def _engine(name: EngineName, clock: Literal["cpu", "wall"], python: str | None) -> RealEngine:
    from simserve.validate.in_process import RealEngine

    return RealEngine(name, clock, python)


def _replay(
    url: str, scenario: Path, overrides: tuple[str, ...], served_model: str | None, api_key: str | None, quiet: bool
) -> Replay:
    """Sends the scenario's requests to the server at ``url`` and leaves a folder, once per call."""
    from simserve.errors import RunError
    from simserve.replay.command import ReplayOptions, replay
    from simserve.replay.source import SourceChoices

    def send(folder: Path) -> Path:
        source = SourceChoices(scenario, overrides)
        done = replay(
            ReplayOptions(
                url=url,
                source=source,
                served_model=served_model,
                api_key=api_key,
                out=folder,
                quiet=quiet,
                command=typed_command(),
            )
        )
        if done.interrupted:
            raise RunError(f"{done.folder}: was interrupted; what was measured until then is kept there")
        return done.folder

    return send
