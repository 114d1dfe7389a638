"""The command line: parse, call, print, exit code. Everything heavy is imported by the command that needs it.

Exit codes: 0 done, 1 a defect (with its traceback) or what a `check` found, 2 the input is wrong (one sentence),
130 interrupted.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

import simserve
from simserve import (
    capacity_command,
    compare_command,
    init_command,
    knee_command,
    memory_command,
    profile_command,
    quantize_command,
    replay_command,
    sweep_command,
    trace_command,
    validate_command,
)
from simserve.errors import InputError
from simserve.exit_codes import exit_codes, typed_command

TERMINATED = 143
EXTRA_FOR_CALIBRATE = "calibrate: needs torch and transformers; install them with: pip install 'simserve[calibrate]'"

app = typer.Typer(
    help="Throughput and latency of language-model serving, simulated on measured step times.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(profile_command.app, name="profile")
app.add_typer(trace_command.app, name="trace")


def main() -> None:
    """Entry point of the console script."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that what is half-written gets removed
    app(prog_name="simserve")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"simserve {simserve.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "simserve run scenarios/skewed64.yaml\n\n"
    "simserve run scenarios/skewed64.yaml --set engine.max_num_seqs=16 --out reports/sixteen\n\n"
    "simserve run scenarios/chat.yaml --set weights=int4 --set attention=mqa\n\n"
    "simserve run scenarios/chat.yaml --seed 7 --trace --no-report"
)
def run(  # noqa: PLR0913, PLR0917 - one argument per option
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override one key, such as engine.max_num_seqs=16; repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="reports/<scenario's name>")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the scenario's.", show_default=False)] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Also write trace.json.gz, for ui.perfetto.dev.")] = False,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write report.html.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Replay one workload under every variant of a scenario; write a report and its data."""
    with exit_codes("nothing was written"):
        from simserve.run_command import RunOptions, run_scenario

        seeds = () if seed is None else (f"seed={seed}",)
        run_scenario(
            RunOptions(
                scenario=scenario,
                overrides=(*(overrides or ()), *seeds),
                out=out,
                trace=trace,
                report=report,
                quiet=quiet,
                command=typed_command(),
            )
        )


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "simserve calibrate\n\n"
    "simserve calibrate --model qwen2.5-0.5b --device cpu --dtype fp32\n\n"
    "simserve calibrate --model ./my-model --device cuda --out my-model-h100.json\n\n"
    "simserve calibrate --model 25m --weights int4   (and --kv-heads 8 for another shape)\n\n"
    "simserve calibrate --url http://127.0.0.1:8000 --model qwen3-8b --dtype bf16"
)
def calibrate(  # noqa: PLR0913, PLR0917 - one argument per option
    model: Annotated[
        str, typer.Option(help="Built-in name, folder with a config.json (weights optional), or hub name.")
    ] = "25m",
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto takes the GPU if there is one.")
    ] = "auto",
    dtype: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"], typer.Option(help="auto is fp32 on a CPU, bf16 on a GPU.")
    ] = "auto",
    weights: Annotated[
        str | None,
        typer.Option(
            help="Really quantize the linear layers: int8, int4 (groups of 128), int4:64 or int4:32. Of a server: what "
            "it runs.",
            show_default="as --dtype",
        ),
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="The model with so many KV heads.", show_default="its own")
    ] = None,
    attn: Annotated[
        str, typer.Option(help="Attention kernel, by its name in transformers; sdpa,eager compares two.")
    ] = "sdpa",
    kv_cache: Annotated[
        Literal["in-place", "dynamic"],
        typer.Option(
            help="in-place as serving engines do; dynamic is transformers' default, which copies at every step."
        ),
    ] = "in-place",
    graphs: Annotated[bool, typer.Option("--graphs", help="On a GPU, replay decode steps as CUDA graphs.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Profile file to write.", show_default="<model>-<device>-<dtype>.json")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue what an interrupted run left beside --out.")] = True,
    grid: Annotated[
        Literal["quick", "standard", "full"],
        typer.Option(help="quick in seconds, standard for minutes, full for a profile to keep."),
    ] = "quick",
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed samples of each point, at most.", show_default="2, 3 or 5 by grid")
    ] = None,
    max_batch_size: Annotated[int | None, typer.Option(min=1, help="Cut the grid.", show_default=False)] = None,
    max_context: Annotated[int | None, typer.Option(min=1, help="Cut the grid.", show_default=False)] = None,
    max_prefill_tokens: Annotated[int | None, typer.Option(min=1, help="Cut the grid.", show_default=False)] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Time whole steps of a serving engine, transformers (its continuous batching) or vllm.",
            show_default="bare forwards",
        ),
    ] = None,
    engine_python: Annotated[
        str | None, typer.Option(help="The Python that has that engine, for vllm.", show_default=False)
    ] = None,
    overhead_for: Annotated[
        Path | None,
        typer.Option(
            help="A profile of bare forwards: fit what the engine's steps take beyond it, and add that.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Calibrate the OpenAI-compatible server running there; --model and --dtype say what it runs.",
            show_default=False,
        ),
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(help="Name to ask that server for.", show_default="the only one it lists")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="Sent to that server, kept nowhere.", show_default="$SIMSERVE_API_KEY"),
    ] = None,
    time_limit_s: Annotated[float, typer.Option(help="Stop asking a server then, and fit what is there.")] = 1800.0,
    timeout_s: Annotated[float, typer.Option(help="How long a server may be silent.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of weights, tokens and the order of the points.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="HTML page to write about it.", show_default="beside the profile")
    ] = None,
) -> None:
    """Time real prefill and decode steps on this machine; write a profile for scenarios to use."""
    given = {**locals(), "command": typed_command()}
    with exit_codes("what was measured is kept; the same command goes on from there"):
        try:
            from calibrate.options import CalibrateOptions

            if url is not None:  # needs no torch
                from calibrate.server.command import calibrate_server as measure
            else:
                from calibrate.command import calibrate as measure
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("torch", "transformers"):
                raise
            raise InputError(EXTRA_FOR_CALIBRATE) from None
        written = measure(CalibrateOptions(**given))

        from simserve.report import report_on_profile

        typer.echo(f"wrote {report_on_profile(written, report)}")


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "simserve chapters\n\n"
    "simserve chapters --model qwen2.5-0.5b --max-tokens 512 --repeats 3"
)
def chapters(  # noqa: PLR0913, PLR0917 - one argument per option
    model: Annotated[
        str, typer.Option(help="Built-in name, folder with a config.json (weights optional), or hub name.")
    ] = "25m",
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto takes the GPU if there is one.")
    ] = "auto",
    dtype: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"], typer.Option(help="auto is fp32 on a CPU, bf16 on a GPU.")
    ] = "auto",
    attn: Annotated[str, typer.Option(help="Attention kernel, by its name in transformers.")] = "sdpa",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=16, help="Longest prompt and sequence to time.")] = 1024,
    repeats: Annotated[int, typer.Option(min=1, help="Clean samples of each step.")] = 5,
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="<model>-<device>-<dtype>.chapters.json")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and of the order of the steps.")] = 0,
) -> None:
    """Measure why serving is built as it is: what a cache saves and holds, what batches gain, what small weights buy.

    With a profile of the same name beside them, they are shown in that profile's page, which is written anew.
    """
    given = {**locals(), "command": typed_command()}
    with exit_codes("nothing was written"):
        try:
            from calibrate.chapters.command import measure_to_file
            from calibrate.chapters.options import ChaptersOptions

            written = measure_to_file(ChaptersOptions(**given))
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("torch", "transformers"):
                raise
            raise InputError(EXTRA_FOR_CALIBRATE) from None

        from simserve.step_time.chapters_schema import profile_beside

        if profile_beside(written).is_file():
            from simserve.report import report_on_profile

            typer.echo(f"wrote {report_on_profile(profile_beside(written))}")


@app.command(
    epilog="[bold]Example[/bold]\n\n"
    "simserve schema > scenario.schema.json   (then, as the first line of a scenario:"
    " # yaml-language-server: $schema=scenario.schema.json)"
)
def schema() -> None:
    """Print the JSON schema of scenario files, for completion and checks in an editor."""
    with exit_codes("the schema is incomplete"):
        from simserve.scenario import scenario_schema

        typer.echo(json.dumps(scenario_schema(), indent=2, ensure_ascii=False))


app.command(epilog=memory_command.EPILOG)(memory_command.memory)
app.command(epilog=quantize_command.QUANTIZE_EPILOG)(quantize_command.quantize)
app.command(epilog=quantize_command.AGREEMENT_EPILOG)(quantize_command.agreement)
app.command(epilog=sweep_command.EPILOG)(sweep_command.sweep)
app.command(epilog=knee_command.EPILOG)(knee_command.knee)
app.command(epilog=capacity_command.EPILOG)(capacity_command.capacity)
app.command(epilog=compare_command.EPILOG)(compare_command.compare)
app.command(epilog=replay_command.EPILOG)(replay_command.replay)
app.command(epilog=validate_command.EPILOG)(validate_command.validate)
app.command(epilog=init_command.EPILOG)(init_command.init)
