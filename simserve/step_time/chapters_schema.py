"""The chapters' tables, measured: a JSON file of its own beside a profile (``schema_version`` 1, digest over the rest).

A profile says how long steps take; these tables say why serving is built as it is: what a cache saves, what it holds,
what batching gains, what smaller weights buy. ``_s`` are seconds by the clock of ``provenance``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from simserve.step_time.measured_file import load_measured
from simserve.step_time.profile_schema import Provenance

CHAPTERS_VERSION = 1
SUFFIX = ".chapters.json"

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Timed(_Strict):
    """Median of the samples, with the interval that holds 90 % of bootstrap medians; ``num_disturbed`` samples were
    taken while other processes ran (and count only beside fewer than two clean ones)."""

    seconds: Seconds
    low_s: Seconds
    high_s: Seconds
    samples: tuple[Seconds, ...] = Field(min_length=1)
    num_disturbed: Count


class PrefillRow(_Strict):
    """A prompt of ``num_new_tokens`` over an empty cache."""

    num_new_tokens: Positive
    step: Timed


class DecodeRow(_Strict):
    """One new token for each of ``batch_size`` rows over ``num_context_tokens`` cached ones each."""

    batch_size: Positive
    num_context_tokens: Count
    step: Timed


class Knee(_Strict):
    """The batch knee (see ``knee.batch_knee``) and the interval that holds 90 % of its bootstrap draws."""

    knee: Positive
    low: Positive
    high: Positive


class CacheRow(_Strict):
    """The next token after ``num_tokens`` − 1 others: with a cache that holds those, or the whole sequence recomputed.
    Peaks are the most bytes that torch had allocated at once above the weights, the cache included."""

    num_tokens: Positive
    cached: Timed
    recomputed: Timed
    cached_peak_bytes: Count
    recomputed_peak_bytes: Count


class PushedTokens(_Strict):
    """Tokens that a real generation pushed through ``model``, counted at its embedding, with a cache and without.
    ``num_equal_tokens`` of the answer's tokens agree between the two."""

    model: str
    num_prompt_tokens: Positive
    num_output_tokens: Positive
    cached: Positive
    recomputed: Positive
    num_equal_tokens: Count
    cached_s: Seconds
    recomputed_s: Seconds


class KvShape(_Strict):
    """KV bytes per token in the tensors of a real cache, and by the formula; they must agree."""

    name: str
    attention: Literal["multi-head", "grouped-query", "multi-query"]
    num_layers: Positive
    num_kv_heads: Positive
    head_dim: Positive
    dtype: str
    measured: Positive
    formula: Positive

    @model_validator(mode="after")
    def _agree(self) -> KvShape:
        if self.measured != self.formula:
            raise ValueError(f"{self.name}: the cache holds {self.measured} bytes per token, not {self.formula}")
        return self


class Residents(_Strict):
    """Bytes of a real cache that holds ``num_sequences`` of ``num_tokens_each``."""

    num_sequences: Positive
    num_tokens_each: Positive
    num_bytes: Positive


WeightsName = Literal["fp32", "bf16", "int8", "int4"]


class WeightsRow(_Strict):
    """The same model with its linear layers in ``name``: bytes of all weights as they lie in memory, and steps.
    ``refused`` says why it does not run on this device; then there are no figures."""

    name: WeightsName
    method: str
    weight_bytes: Positive | None = None
    decode: Timed | None = None
    prefill: Timed | None = None
    refused: str | None = None


class WeightsTable(_Strict):
    """``decode``: one row over ``num_context_tokens``; ``prefill``: ``num_new_tokens`` over an empty cache."""

    num_context_tokens: Count
    num_new_tokens: Positive
    rows: tuple[WeightsRow, ...]


class Chapters(_Strict):
    """All tables of one run on one device."""

    schema_version: Literal[1]
    name: str
    provenance: Provenance
    prefill: tuple[PrefillRow, ...]
    decode: tuple[DecodeRow, ...]
    batch: tuple[DecodeRow, ...]
    knee: Knee
    cache: tuple[CacheRow, ...]
    peak_method: str
    pushed: PushedTokens
    kv_shapes: tuple[KvShape, ...]
    residents_model: str
    residents: tuple[Residents, ...]
    weights: WeightsTable
    digest: str


def load_chapters(path: Path) -> Chapters:
    """Read and check a file of measured tables. Raises ``ProfileError`` in one sentence."""
    return load_measured(path, Chapters, "simserve chapters")


def chapters_beside(profile: Path) -> Path:
    """Where the tables that belong to a profile file lie: ``NAME.chapters.json`` beside ``NAME.json``."""
    return profile.with_name(profile.name.removesuffix(".json") + SUFFIX)


def profile_beside(chapters: Path) -> Path:
    """The profile file that a file of tables belongs to."""
    return chapters.with_name(chapters.name.removesuffix(".json").removesuffix(".chapters") + ".json")
