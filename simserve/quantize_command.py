"""``simserve quantize`` and ``simserve agreement``: what the command line takes; the work is done in
``calibrate.quantize``, with torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from simserve.errors import InputError
from simserve.exit_codes import exit_codes, typed_command

EXTRA = "needs torch and transformers; install them with: pip install 'simserve[calibrate]'"
QUANTIZE_EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "simserve quantize qwen2.5-0.5b   (random weights: errors, and no quality)\n\n"
    "simserve quantize ./my-model --text book.txt --weights int8,int4:row,int4,nf4\n\n"
    "python -m calibrate.train --out small && simserve quantize small/target --text small/held-out.txt"
)
AGREEMENT_EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "simserve agreement ./my-model ./my-draft --text book.txt --draft-tokens 8\n\n"
    "simserve agreement small/target small/draft --text small/held-out.txt --out agreement.json\n\n"
    "(then, in a scenario: engine: {speculation: {draft_tokens: 4, acceptance: {measured: agreement.json}, …}})"
)
Dtype = Annotated[Literal["fp32", "bf16", "fp16"], typer.Option(help="What the models compute in, on the CPU.")]


def quantize(  # noqa: PLR0913, PLR0917 - one argument per option
    model: Annotated[
        str, typer.Argument(help="Folder with trained weights, or any model that calibrate takes.", show_default=False)
    ],
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCHEME",
            help="int8 and int4 per :tensor, :row or group such as :128, and nf4; several, with commas.",
            show_default="int8:tensor,int8,int8:128,int4:tensor,int4:row,int4,nf4",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Judge trained weights on this text (UTF-8).", show_default=False),
    ] = None,
    dtype: Dtype = "fp32",
    windows: Annotated[int, typer.Option(min=1, help="Windows of the text, for the perplexity.")] = 64,
    window_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each.")] = 128,
    answers: Annotated[int, typer.Option(min=1, help="Prompts to answer greedily.")] = 32,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each, taken from the text.")] = 64,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens of each answer.")] = 32,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch.")] = 1,
    out: Annotated[Path | None, typer.Option(help="File to write.", show_default="<model>.quantization.json")] = None,
    seed: Annotated[int, typer.Option(help="Seed of random weights and of the intervals.")] = 0,
) -> None:
    """Round every projection matrix to 8 and 4 bits, and say what it costs: error, bits, perplexity, greedy agreement.

    Weights are rounded and turned back, so that what is measured is the rounding, on any machine; how fast such weights
    run is what calibrate --weights measures. Intervals are of 95 %. With random weights quality cannot be measured.
    """
    with exit_codes("nothing was written"), _extra("quantize"):
        from calibrate.quantize.command import quantize as measure
        from calibrate.quantize.options import SCHEMES, QuantizeOptions

        given = [name.strip() for names in weights or [] for name in names.split(",")]
        options = QuantizeOptions(
            model=model,
            schemes=tuple(given) if weights else SCHEMES,
            text=text,
            dtype=dtype,
            windows=windows,
            window_tokens=window_tokens,
            answers=answers,
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
            threads=threads,
            out=out,
            seed=seed,
            command=typed_command(),
        )
        written = measure(options)

        from simserve.report import report_on_quantization

        typer.echo(f"wrote {report_on_quantization(written)}")


def agreement(  # noqa: PLR0913, PLR0917 - one argument per option
    target: Annotated[str, typer.Argument(help="Folder of the model to speed up.", show_default=False)],
    draft: Annotated[str, typer.Argument(help="Folder of the small model that drafts for it.", show_default=False)],
    text: Annotated[
        Path, typer.Option(metavar="FILE", help="Prompts are taken from this text (UTF-8).", show_default=False)
    ],
    draft_tokens: Annotated[int, typer.Option(min=1, help="Tokens that a pass drafts.")] = 8,
    dtype: Dtype = "fp32",
    answers: Annotated[int, typer.Option(min=1, help="Prompts to answer greedily.")] = 128,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 64,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens of each answer.")] = 32,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="<target>-<draft>.agreement.json")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the intervals.")] = 0,
) -> None:
    """Measure how many drafted tokens a target accepts, position by position, for scenarios with speculation.

    Greedy decoding: a drafted token is accepted if it is the one that the target would choose itself.
    """
    with exit_codes("nothing was written"), _extra("agreement"):
        from calibrate.quantize.agreement_command import measure_agreement
        from calibrate.quantize.options import AgreementOptions

        options = AgreementOptions(
            target=target,
            draft=draft,
            text=text,
            draft_tokens=draft_tokens,
            dtype=dtype,
            answers=answers,
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
            threads=threads,
            out=out,
            seed=seed,
            command=typed_command(),
        )
        written = measure_agreement(options)

        from simserve.report import report_on_agreement

        typer.echo(f"wrote {report_on_agreement(written)}")


@contextmanager
def _extra(command: str) -> Iterator[None]:
    """Torch that is missing is one sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("torch", "transformers"):
            raise
        raise InputError(f"{command}: {EXTRA}") from None
