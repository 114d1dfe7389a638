"""``simserve profile``: list, show, check, import and compare step-time profiles. Nothing here needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from simserve.exit_codes import exit_codes, typed_command

app = typer.Typer(
    help="List, show, check, import and compare step-time profiles.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
NameOrFile = Annotated[str, typer.Argument(help="A shipped profile's name, or a file.", show_default=False)]
UNWRITTEN = "nothing was written"


@app.command("list")
def list_(
    folder: Annotated[Path | None, typer.Argument(help="Also the profiles of this folder.", show_default=False)] = None,
) -> None:
    """List the profiles that come with simserve, and those of a folder."""
    with exit_codes(UNWRITTEN):
        from rich.console import Console

        from calibrate.listing import list_profiles

        list_profiles(folder, Console())


@app.command()
def show(
    profile: NameOrFile,
    html: Annotated[Path | None, typer.Option(help="Also draw it: a page to write.", show_default=False)] = None,
) -> None:
    """Print a profile's step times, batch curve, errors and notes."""
    with exit_codes(UNWRITTEN):
        from rich.console import Console

        from calibrate.show import show as print_profile
        from simserve.step_time.profile_schema import load_profile

        print_profile(load_profile(profile), Console())
        if html is not None:
            from calibrate.partial import require_writable
            from simserve.report import report_on_profile

            require_writable(html)
            typer.echo(f"wrote {report_on_profile(profile, html)}")


@app.command()
def check(
    profile: Annotated[str, typer.Argument(help="A shipped profile's name, a profile file, or a csv of step times.")],
    model: Annotated[str | None, typer.Option(help="Of a csv: to check FLOP/s and bandwidth.")] = None,
    device_name: Annotated[str | None, typer.Option(help="Of a csv: the chip, such as 'NVIDIA H200'.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of a csv: of the weights.")] = None,
) -> None:
    """Screen step times for physical sense: one line per finding; exit code 1 if there is any, 0 if there is none."""
    with exit_codes(UNWRITTEN):
        from calibrate.screening.screen import screen

        findings = screen(profile, model, device_name, dtype)
        for finding in findings:
            typer.echo(finding)
        typer.echo(f"{len(findings) or 'no'} finding{'s' * (len(findings) != 1)} in {profile}", err=True)
        if findings:
            raise typer.Exit(1)


@app.command()
def compare(first: NameOrFile, second: NameOrFile) -> None:
    """Print the step times of the second profile over those of the first, wherever both were measured."""
    with exit_codes(UNWRITTEN):
        from rich.console import Console

        from calibrate.compare import compare as print_ratios
        from simserve.step_time.profile_schema import load_profile

        print_ratios(load_profile(first), load_profile(second), Console())


@app.command(
    "import",
    epilog="[bold]Formats[/bold]\n\n"
    "step-csv: a csv of phase, batch_size, context_tokens, new_tokens, step_time_ms\n\n"
    "llama-batched-bench: its table or jsonl (llama.cpp)\n\n"
    "llmservingsim: a folder tp<N> with dense.csv, attention.csv and per_sequence.csv, meta.yaml beside it\n\n"
    "vidur: mlp.csv and attention.csv, in this order\n\n"
    "aiconfigurator: no file; its installed database, by --system, --backend, --model and --dtype\n\n"
    "[bold]Example[/bold]\n\n"
    "simserve profile import step-csv steps.csv --model llama-3.1-8b --device-name 'NVIDIA H200' --dtype fp8",
)
def import_(  # noqa: PLR0913, PLR0917 - one argument per option
    form: Annotated[
        Literal["step-csv", "llama-batched-bench", "llmservingsim", "vidur", "aiconfigurator"],
        typer.Argument(metavar="FORMAT", help="One of the formats below.", show_default=False),
    ],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE…", help="Files of that format.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Built-in name or config.json, unless the files tell.", show_default=False)
    ] = None,
    device_name: Annotated[
        str | None, typer.Option(help="The chip, such as 'NVIDIA H200'.", show_default=False)
    ] = None,
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="The kind of device.")] = "cuda",
    dtype: Annotated[str | None, typer.Option(help="Of the weights, such as bf16 or fp8.", show_default=False)] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="Devices that share a layer.", show_default=False)
    ] = None,
    source: Annotated[str | None, typer.Option(help="Publication and licence, to cite.", show_default=False)] = None,
    date: Annotated[str | None, typer.Option(help="When it was measured.", show_default="today")] = None,
    prefill: Annotated[
        Literal["step", "ttft"],
        typer.Option(help="What prefill times are: steps, or times to first token with a request's own work in them."),
    ] = "step",
    note: Annotated[list[str] | None, typer.Option(help="What a reader should know; repeatable.")] = None,
    system: Annotated[str | None, typer.Option(help="Of aiconfigurator: such as h200_sxm.", show_default=False)] = None,
    backend: Annotated[
        Literal["trtllm", "sglang", "vllm"], typer.Option(help="Of aiconfigurator: the measured engine.")
    ] = "trtllm",
    backend_version: Annotated[
        str | None, typer.Option(help="Of aiconfigurator: its version.", show_default="newest maintained")
    ] = None,
    python: Annotated[
        Path | None, typer.Option(help="Of aiconfigurator: the Python that has it.", show_default="this one")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Profile file to write.", show_default="<model>-<device>-<dtype>.json")
    ] = None,
) -> None:
    """Turn step times that others measured into a profile, with the error of the fit on points left out."""
    with exit_codes(UNWRITTEN):
        from rich.console import Console

        from calibrate.importers.aiconfigurator import DatabaseQuery
        from calibrate.importers.formats import import_profile
        from calibrate.importers.reading import ImportOptions
        from calibrate.partial import require_writable, write_atomically
        from calibrate.show import show as print_profile

        if out is not None:
            require_writable(out)
        options = ImportOptions(
            name=out.stem if out else "",
            model=model,
            device_name=device_name,
            device=device,
            dtype=dtype,
            tensor_parallel=tensor_parallel,
            source=source,
            date=date,
            prefill_times=prefill,
            notes=tuple(note or ()),
            command=typed_command(),
        )
        query = DatabaseQuery(system, backend, backend_version, python)
        profile, text = import_profile(form, files or [], options, query)
        path = out or Path(f"{profile.name}.json")
        require_writable(path)
        write_atomically(path, text)
        print_profile(profile, Console())
        typer.echo(f"wrote {path}")
