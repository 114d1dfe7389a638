"""What was fitted to the samples of a profile: tables, corrections, their errors and where they hold."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TableRow(Strict):
    """Measured seconds at increasing contexts, at one row value (new tokens, or batch size); between ``low_s`` and
    ``high_s`` another run would find the median 19 times in 20 (null where that is not known)."""

    row: Positive
    contexts: tuple[Count, ...] = Field(min_length=2)
    seconds: tuple[Seconds, ...] = Field(min_length=2)
    low_s: tuple[Seconds, ...] | None = None
    high_s: tuple[Seconds, ...] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> TableRow:
        if len(self.contexts) != len(self.seconds):
            raise ValueError(f"{len(self.contexts)} contexts but {len(self.seconds)} seconds")
        if any(b <= a for a, b in pairwise(self.contexts)):
            raise ValueError("contexts must increase")
        for bound in (self.low_s, self.high_s):
            if bound is not None and len(bound) != len(self.contexts):
                raise ValueError(f"{len(self.contexts)} contexts but bounds of {len(bound)}")
        return self


class Table(Strict):
    """``prefill``: rows are new tokens of one sequence; ``decode``: rows are batch sizes, contexts per sequence."""

    rows: tuple[TableRow, ...] = Field(min_length=2)

    @model_validator(mode="after")
    def _in_order(self) -> Table:
        if any(b.row <= a.row for a, b in pairwise(self.rows)):
            raise ValueError("rows must increase")
        return self


class MixedCorrection(Strict):
    """What measured mixed steps take against the composition of prefill and decode: times ``values`` (``ratio``) or
    plus ``values`` seconds (``added``), over new tokens of the chunk (rows) and decodes beside it (columns)."""

    form: Literal["ratio", "added"]
    num_new_tokens: tuple[Positive, ...] = Field(min_length=1)
    num_decodes: tuple[Positive, ...] = Field(min_length=1)
    values: tuple[tuple[Share, ...], ...]
    num_points: Positive

    @model_validator(mode="after")
    def _whole(self) -> MixedCorrection:
        for axis in (self.num_new_tokens, self.num_decodes):
            if any(b <= a for a, b in pairwise(axis)):
                raise ValueError("num_new_tokens and num_decodes must increase")
        if [len(row) for row in self.values] != [len(self.num_decodes)] * len(self.num_new_tokens):
            raise ValueError("values must have a row per num_new_tokens and a column per num_decodes")
        if self.form == "ratio" and not all(value > 0 for row in self.values for value in row):
            raise ValueError("ratios must be > 0")
        return self


class NoCacheTable(Strict):
    """Bare forwards of one whole sequence of ``num_tokens`` without a cache, each computing all of them; bounds as in
    ``TableRow``."""

    num_tokens: tuple[Positive, ...] = Field(min_length=1)
    seconds: tuple[Seconds, ...] = Field(min_length=1)
    low_s: tuple[Seconds, ...] | None = None
    high_s: tuple[Seconds, ...] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> NoCacheTable:
        if any(b <= a for a, b in pairwise(self.num_tokens)):
            raise ValueError("num_tokens must increase")
        for cells in (self.seconds, self.low_s, self.high_s):
            if cells is not None and len(cells) != len(self.num_tokens):
                raise ValueError(f"{len(self.num_tokens)} lengths but {len(cells)} seconds")
        return self


class HeldOutError(Strict):
    """Relative errors |predicted − measured| / measured on points that were not fitted, as shares; null if none.
    ``noise`` is how far the same points lay from themselves when they were measured again: no prediction can be
    expected to do better."""

    num_points: Count
    mean: Share | None
    p95: Share | None
    max: Share | None
    noise: Share | None = None


class HeldOut(Strict):
    """By kind of step; ``packed`` are several prompts in one step, ``unequal`` decodes over different contexts,
    ``repeated`` decodes that follow several of their own decision (no part of ``all``)."""

    prefill: HeldOutError
    decode: HeldOutError
    all: HeldOutError
    mixed: HeldOutError | None = None
    packed: HeldOutError | None = None
    unequal: HeldOutError | None = None
    repeated: HeldOutError | None = None


class Noise(Strict):
    """Relative standard deviations: of one sample among those of its point in one run (``within_run``); between runs,
    of a factor that all points of a run ``shared``, and of one that each point has of its own (``per_point``).
    ``basis`` says what the last two rest on, over ``num_sessions`` runs."""

    within_run: Share
    shared: Share
    per_point: Share
    num_sessions: Positive
    basis: str


class Drift(Strict):
    """One decode step, visited again and again during the run: the relative change of its time from the first visit to
    the last, by the median of the slopes between visits, and the range of its times over their median."""

    batch_size: Positive
    num_context_tokens: Count
    num_visits: Positive
    trend: float
    spread: Share


class GpuClocks(Strict):
    """Clocks of the GPU's multiprocessors between samples, and in what share of readings something ``slowed`` it."""

    num_readings: Positive
    min_sm_mhz: Share
    median_sm_mhz: Share
    max_sm_mhz: Share
    max_temperature_c: float
    slowed: dict[str, Share]


class Validity(Strict):
    """Ranges inside which nothing is extrapolated (rows near the upper end may reach less far in context)."""

    max_prefill_tokens: Positive
    max_prefill_context: Count
    max_batch_size: Positive
    min_decode_context: Count
    max_decode_context: Count


class KvBytes(Strict):
    """KV bytes per token: of the real cache tensors, and 2 · layers · KV heads · head dim · bytes. They must agree."""

    measured: Positive
    formula: Positive

    @model_validator(mode="after")
    def _agree(self) -> KvBytes:
        if self.measured != self.formula:
            raise ValueError(f"the cache tensors hold {self.measured} bytes per token, the formula says {self.formula}")
        return self


class BatchPoint(Strict):
    """Decode throughput at one batch size; ``latency_ratio`` and ``throughput_ratio`` are against the smallest."""

    batch_size: Positive
    seconds: Seconds
    tokens_per_s: Seconds
    latency_ratio: Seconds
    throughput_ratio: Seconds


class BatchCurve(Strict):
    """Decode steps over batch size at one context. ``knee`` is the largest batch whose incoming doubling still gained
    at least √2 in throughput (the smallest batch if none did)."""

    num_context_tokens: Count
    points: tuple[BatchPoint, ...] = Field(min_length=1)
    knee: Positive
