"""``simserve init``: what the command line takes; the work is done in ``simserve.vllm_flags``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simserve.exit_codes import exit_codes

if TYPE_CHECKING:
    from simserve.vllm_flags.document import Findings

EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "simserve init\n\n"
    "simserve init --from-vllm 'vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 64 --max-num-batched-tokens 2048'\n\n"
    'simserve init --from-vllm "$(cat start.sh)" --hardware a100-sxm --kv-cache-tokens 41408 --out mine.yaml\n\n'
    "simserve init --from-vllm 'docker run --gpus all vllm/vllm-openai:v0.19.0 --model Qwen/Qwen3-8B -tp 2'"
)


def init(  # noqa: PLR0913, PLR0917 - one argument per option
    from_vllm: Annotated[
        str | None,
        typer.Option(
            "--from-vllm",
            metavar="COMMAND",
            help="The command that starts a vLLM server, in quotes: vllm serve …, python -m … or docker run …",
            show_default="a small starter scenario",
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="Where it runs: sets vLLM's defaults, and the size of its cache.", show_default="h100-sxm"),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Measured step times, by name or file.", show_default="a datasheet's estimate")
    ] = None,
    vllm_version: Annotated[
        Literal["0.19", "0.32"] | None,
        typer.Option(help="Whose rules and defaults.", show_default="the image's, or 0.32"),
    ] = None,
    kv_cache_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="What the server's log calls 'GPU KV cache size'.", show_default="estimated"),
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("scenario.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a scenario: what the flags of a vLLM server mean, or a small one to begin with.

    Flags that have no counterpart are named, in the file and here. The traffic is not in the flags: edit it.
    """
    with exit_codes("nothing was written"):
        from simserve.vllm_flags import InitOptions, init_scenario

        options = InitOptions(out, from_vllm, hardware, profile, vllm_version, kv_cache_tokens, force)
        findings = init_scenario(options).findings
        if findings is not None:
            _print(findings)
        typer.echo(f"wrote {out}; next: simserve run {out}")


def _print(findings: Findings) -> None:
    """What the user must know about the flags, on standard error."""
    for warning in findings.warnings:
        typer.echo(f"note: {warning}", err=True)
    if findings.untranslated:
        typer.echo("not translated, and may matter to timing:", err=True)
    for flag, why in findings.untranslated.items():
        typer.echo(f"  {flag}: {why}", err=True)
    if findings.immaterial:
        typer.echo(f"left out, for they do not matter to timing: {', '.join(findings.immaterial)}", err=True)
