"""What ``simserve quantize`` and ``simserve agreement`` can be asked. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SCHEMES = ("int8:tensor", "int8", "int8:128", "int4:tensor", "int4:row", "int4", "nf4")


@dataclass(frozen=True)
class QuantizeOptions:
    """Options of one run; each is a flag of the same name.

    ``schemes`` as ``simserve memory --weights`` names them; ``text`` a file to judge trained weights on, cut into
    ``windows`` of ``window_tokens``, and into ``answers`` prompts of ``prompt_tokens``, to be answered with
    ``answer_tokens`` greedy tokens; ``out`` the file to write, by default ``<model>.quantization.json`` here.
    """

    model: str
    schemes: tuple[str, ...] = SCHEMES
    text: Path | None = None
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    windows: int = 64
    window_tokens: int = 128
    answers: int = 32
    prompt_tokens: int = 64
    answer_tokens: int = 32
    threads: int = 1
    out: Path | None = None
    seed: int = 0
    command: str = ""


@dataclass(frozen=True)
class AgreementOptions:
    """Options of one run; each is a flag of the same name.

    ``target`` and ``draft`` are folders with trained weights and one tokenizer; the rest as in ``QuantizeOptions``.
    """

    target: str
    draft: str
    text: Path
    draft_tokens: int = 8
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    answers: int = 128
    prompt_tokens: int = 64
    answer_tokens: int = 32
    threads: int = 1
    out: Path | None = None
    seed: int = 0
    command: str = ""
