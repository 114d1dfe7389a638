"""``simserve memory``: what the command line takes; the work is done in ``simserve.memory``."""

from __future__ import annotations

from typing import Annotated

import typer

from simserve.exit_codes import exit_codes

EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "simserve memory llama-3.1-8b --weights int4 --memory 16GiB\n\n"
    "simserve memory llama-3.1-8b qwen2.5-7b --weights fp16,int8,int4 --memory rtx-4090,h100-sxm --context 8192\n\n"
    "simserve memory model.Q4_K_M.gguf --memory 8GiB --kv-dtype int8   (the file's header is enough)\n\n"
    "simserve memory --params 13B --layers 40 --kv-heads 40 --head-dim 128 --weights-bits 4.125 --memory 8GiB\n\n"
    "simserve memory qwen2.5-0.5b --users 32 --context 2048   (what do they need?)"
)


def memory(  # noqa: PLR0913, PLR0917 - one argument per option
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Built-in name, config.json or its folder, or a GGUF file; several make a table.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="The same as MODEL.", show_default=False)] = None,
    params: Annotated[
        str | None, typer.Option(metavar="COUNT", help="Instead of MODEL: parameters, such as 13B.", show_default=False)
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Instead of MODEL: layers.", show_default=False)] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="KV heads: instead of MODEL, or instead of the model's own.", show_default=False)
    ] = None,
    head_dim: Annotated[int | None, typer.Option(help="Instead of MODEL: width of a head.", show_default=False)] = None,
    heads: Annotated[
        int | None, typer.Option(help="Instead of MODEL: attention heads, for multi-head.", show_default=False)
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE|DEVICE",
            help="Of one device: 16GiB, 16GB, or a name such as h100-sxm; several, with commas, make a table.",
            show_default=False,
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCHEME",
            help="fp32, fp16, bf16, fp8, int8, int4 (a scale per 128 weights), int4:GROUP, nf4, bits such as 4.125, or "
            "stored (as a GGUF file keeps them); several, with commas, make a table.",
            show_default="stored for a GGUF file, else fp16",
        ),
    ] = None,
    weights_bits: Annotated[
        list[str] | None,
        typer.Option(metavar="BITS", help="Bits per weight, scales and all, such as 4.125.", show_default=False),
    ] = None,
    kv_dtype: Annotated[str, typer.Option(help="Of keys and values: fp32, fp16, bf16, fp8 or int8.")] = "fp16",
    overhead: Annotated[
        str, typer.Option(metavar="SIZE", help="Kept on each device for activations and the driver.")
    ] = "1.5GiB",
    tensor_parallel: Annotated[int, typer.Option(help="Devices that share a model.")] = 1,
    context: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOKENS",
            help="How many users have so much context each? Several with commas.",
            show_default="2048,8192,32768; in a table 8192",
        ),
    ] = None,
    users: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COUNT",
            help="How much context has each of so many? Several with commas; with --context, what they need together.",
            show_default="1,8,64; in a table none",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, or a list for a table.")] = False,
) -> None:
    """Does it fit, with how much context, for how many users? Counted from dimensions, in exact bytes.

    Memory, less weights and overhead, is divided by the keys and values of a token. 1 GiB is 2³⁰ bytes and 1 GB is 10⁹;
    sizes are printed in the kind of unit that --memory is given in.
    """
    with exit_codes("nothing was counted"):
        from simserve.memory.command import MemoryOptions, show_memory

        show_memory(
            MemoryOptions(
                models=(*(models or ()), *(model or ())),
                params=params,
                layers=layers,
                kv_heads=kv_heads,
                head_dim=head_dim,
                heads=heads,
                memory=tuple(memory or ()),
                weights=tuple(weights or ()),
                weights_bits=tuple(weights_bits or ()),
                kv_dtype=kv_dtype,
                overhead=overhead,
                tensor_parallel=tensor_parallel,
                context=tuple(context or ()),
                users=tuple(users or ()),
                json=json,
            )
        )
