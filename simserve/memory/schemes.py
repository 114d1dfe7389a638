"""How a model's weights are kept: so many bits each, and a scale for each group of them.

Pure arithmetic, shared by scenarios (``weights:``), profiles (``provenance.weights``) and ``simserve memory``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Protocol

from simserve.errors import FootprintError

SCALE_BITS = 16  # one fp16 scale per group
MIN_BITS, MAX_BITS, MAX_GROUP = 0.1, 64, 2**20
UNSCALED_BITS: dict[str, int] = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8}
SCALED_BITS: dict[str, int] = {"int8": 8, "int4": 4, "nf4": 4}
GROUPS: dict[str, int | None] = {"int8": None, "int4": 128, "nf4": 64}
"""Weights that share a scale where the text says nothing; ``None`` is a scale per row."""

ALIASES = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
KNOWN = (*UNSCALED_BITS, *SCALED_BITS, "int4:GROUP", "int4:row", "int4:tensor")

_WITH_GROUP = re.compile(r"(int8|int4|nf4):(\w+)", re.ASCII)
_NUMBER = re.compile(r"\d{1,3}(\.\d{1,20})?", re.ASCII)


class HasParameters(Protocol):
    """Anything that says how many parameters a model has, such as a ``ModelSpec``."""

    @property
    def num_parameters(self) -> int:
        """All parameters, embeddings included."""
        ...


@dataclass(frozen=True)
class WeightScheme:
    """One way to keep weights.

    ``name``: the canonical text, which ``parse_scheme`` reads back: two schemes of one name are the same.
    ``bits``: of one weight, without scales. ``group_size``: weights that share an fp16 scale; ``None`` where there is
    no scale, or one per row or tensor, which in rows of thousands of weights is below a hundredth of a bit
    (``scale_bits_per_row``).
    """

    name: str
    bits: float
    group_size: int | None

    @property
    def bits_per_weight(self) -> float:
        """Bits of one weight with its share of the scale: 4.125 for int4 in groups of 128, 4.25 for NF4 in 64s."""
        return float(self.exact_bits)

    @property
    def exact_bits(self) -> Fraction:
        """``bits_per_weight`` as a fraction, so that bytes of billions of weights are exact."""
        bits = Fraction(str(self.bits))
        return bits if self.group_size is None else bits + Fraction(SCALE_BITS, self.group_size)

    @property
    def label(self) -> str:
        """For people: the name, and the bits where the name does not say them."""
        if self.name[0].isdigit():
            return f"{self.name} bits"
        return self.name if self.group_size is None else f"{self.name} ({self.bits_per_weight:.5g} bits)"


def parse_scheme(text: str) -> WeightScheme:
    """The scheme that a text names: fp32, fp16, bf16, fp8, int8 (a scale per row), int4 (groups of 128), nf4 (groups of
    64), a group of one's own (``int4:64``, ``int8:128``, ``nf4:32``), ``int4:row``, ``int4:tensor``, ``int8:tensor``,
    or bits per weight with everything in them (``4.125``).

    Raises ``FootprintError`` in one sentence, with the nearest name where there is one.
    """
    key = text.strip().lower()
    key = ALIASES.get(key, key)
    if key in UNSCALED_BITS:
        return WeightScheme(key, UNSCALED_BITS[key], None)
    if key in SCALED_BITS:
        return WeightScheme(key, SCALED_BITS[key], GROUPS[key])
    if _NUMBER.fullmatch(key):
        return scheme_of_bits(float(key))
    if match := _WITH_GROUP.fullmatch(key):
        return _grouped(*match.groups())
    close = get_close_matches(key, (*UNSCALED_BITS, *SCALED_BITS), n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(KNOWN)}, or bits per weight such as 4.125"
    raise FootprintError(f"weights: unknown scheme {text!r}; {hint}")


def scheme_of_bits(bits: float) -> WeightScheme:
    """A scheme that says nothing but bits per weight, scales and all. Raises ``FootprintError`` outside 0.1 to 64."""
    if not MIN_BITS <= bits <= MAX_BITS:  # NaN fails too
        raise FootprintError(f"weights: bits per weight must be from {MIN_BITS} to {MAX_BITS} (got {bits:g})")
    return WeightScheme(repr(bits).removesuffix(".0"), bits, None)


def weight_bytes(model: HasParameters, scheme: WeightScheme) -> int:
    """Bytes of all parameters of ``model`` in ``scheme``, scales of groups included, rounded up to a byte.

    Every parameter is counted in the scheme, as in the textbook's figures. Real 4-bit checkpoints (GPTQ, AWQ,
    bitsandbytes) keep embeddings, output head and norms in 16 bits: for a 7B model with a vocabulary of 32,000 that is
    262 million of 6.7 billion weights, 0.36 GiB more; with 128,000 entries and 8B, 1.05 billion weights, 1.45 GiB.
    A GGUF file says for each tensor what it is kept in, and ``simserve memory`` then counts those.
    """
    return math.ceil(model.num_parameters * scheme.exact_bits / 8)


def scale_bits_per_row(row_width: int) -> float:
    """What one fp16 scale per row adds to each of its weights, in bits: 0.0039 for rows of 4,096. Not counted above."""
    return SCALE_BITS / row_width


def _grouped(name: str, group: str) -> WeightScheme:
    bits = SCALED_BITS[name]
    if name != "nf4" and group in ("row", "tensor"):
        return WeightScheme(name if group == "row" and GROUPS[name] is None else f"{name}:{group}", bits, None)
    if not group.isdecimal() or not 1 <= int(group[:9]) <= MAX_GROUP or len(group) > 7:
        words = "" if name == "nf4" else ", row or tensor"
        raise FootprintError(
            f"weights: the group of {name} must be a whole number from 1 to {MAX_GROUP}{words} (got {group!r})"
        )
    size = int(group)
    return WeightScheme(name if GROUPS[name] == size else f"{name}:{size}", bits, size)
