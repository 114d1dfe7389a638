"""What ``simserve chapters`` can be asked. Imports no torch, so that a command line can build it for free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ChaptersOptions:
    """Options of one run; each is a flag of the same name, as ``simserve calibrate`` calls it.

    ``max_tokens`` is the longest prompt and sequence to time; ``repeats`` the clean samples of each step; ``out`` the
    file to write, by default ``<model>-<device>-<dtype>.chapters.json`` here, beside the profile of that name.
    """

    model: str = "25m"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    attn: str = "sdpa"
    threads: int = 1
    max_tokens: int = 1024
    repeats: int = 5
    out: Path | None = None
    seed: int = 0
    command: str = ""
