"""All tables of one run, one after the other, each by the module that knows how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from calibrate.chapters.kv_shapes import REFERENCE, measure_kv_shapes, measure_residents
from calibrate.chapters.peak import peak_bytes, peak_method
from calibrate.chapters.pushed import count_pushed
from calibrate.chapters.steps import cached_step, recomputed_step
from calibrate.chapters.timing import Case, Watch
from calibrate.chapters.weights import measure_weights
from calibrate.model import ModelSource, build_model
from simserve.model_spec import load_model_spec
from simserve.step_time.chapters_schema import CacheRow, DecodeRow, Knee, PrefillRow, Timed
from simserve.step_time.knee import knee_interval

BATCHES = (1, 2, 4, 8, 16, 32, 64)
BATCH_CONTEXT = 256
PUSHED_MODEL = "tiny"  # 163,712 tokens are counted in seconds there; how many they are does not depend on the model
_LONGEST = (16, 64, 128, 256, 512, 1024, 2048, 4096)

Say = Callable[[str], None]
Table = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """The model in its dtype on its device, and how to time it."""

    source: ModelSource
    model: Any
    device: str
    attn: str
    watch: Watch
    max_tokens: int


def measure_chapters(subject: Subject, say: Say) -> Table:
    """Fields of ``Chapters``, all but its name, provenance and digest; ``say`` hears what comes next."""
    say("prefill over tokens, decode over context and over batch size")
    tables = _steps(subject)
    say("the next token with a cache and without")
    tables |= _cache(subject)
    say("tokens pushed through a model")
    tiny = ModelSource(load_model_spec(PUSHED_MODEL), None, False)
    model = build_model(tiny, subject.device, "fp32", subject.attn, subject.watch.seed)
    tables["pushed"] = count_pushed(model, PUSHED_MODEL)
    say("bytes of caches")
    tables["kv_shapes"] = measure_kv_shapes(subject.source.spec, subject.device)
    tables |= {"residents_model": REFERENCE, "residents": measure_residents(subject.device)}
    say("weights in fp32, bf16, int8 and int4")
    shape = min(BATCH_CONTEXT, subject.max_tokens), min(128, subject.max_tokens)
    tables["weights"] = measure_weights(subject.source, subject.device, subject.attn, subject.watch, shape)
    return tables


def lengths(max_tokens: int) -> tuple[int, ...]:
    """The lengths to time: powers of two up to ``max_tokens``, which is the last."""
    return (*(length for length in _LONGEST if length < max_tokens), max_tokens)


def _steps(subject: Subject) -> Table:
    """The three curves, timed together so that no drift comes between them."""
    steps = lengths(subject.max_tokens)
    context = min(BATCH_CONTEXT, subject.max_tokens)
    shapes = {("prefill", n): (1, n, 0) for n in steps}
    shapes |= {("decode", n): (1, 1, n) for n in steps}
    shapes |= {("batch", rows): (rows, 1, context) for rows in BATCHES}
    timed = subject.watch.time_all({key: _case(subject, shape) for key, shape in shapes.items()})
    prefill = tuple(PrefillRow(num_new_tokens=n, step=timed["prefill", n]) for n in steps)
    decode = tuple(DecodeRow(batch_size=1, num_context_tokens=n, step=timed["decode", n]) for n in steps)
    batch = tuple(DecodeRow(batch_size=b, num_context_tokens=context, step=timed["batch", b]) for b in BATCHES)
    interval = knee_interval({row.batch_size: row.step.samples for row in batch})
    knee = Knee(knee=interval.knee, low=interval.low, high=interval.high)
    return {"prefill": prefill, "decode": decode, "batch": batch, "knee": knee}


def _cache(subject: Subject) -> Table:
    steps = [length for length in lengths(subject.max_tokens) if length > 1]
    cases = {("cached", n): _case(subject, (1, 1, n - 1)) for n in steps}
    cases |= {("recomputed", n): recomputed_step(subject.model, n) for n in steps}
    timed = subject.watch.time_all(cases)
    rows = tuple(_cache_row(subject, n, timed["cached", n], timed["recomputed", n]) for n in steps)
    return {"cache": rows, "peak_method": peak_method(subject.device)}


def _cache_row(subject: Subject, num_tokens: int, cached: Timed, recomputed: Timed) -> CacheRow:
    def make_cached() -> Callable[[], object]:
        case = _case(subject, (1, 1, num_tokens - 1))
        case.prepare()
        return case.run

    return CacheRow(
        num_tokens=num_tokens,
        cached=cached,
        recomputed=recomputed,
        cached_peak_bytes=peak_bytes(make_cached, subject.device),
        recomputed_peak_bytes=peak_bytes(lambda: recomputed_step(subject.model, num_tokens).run, subject.device),
    )


def _case(subject: Subject, shape: tuple[int, int, int]) -> Case:
    return cached_step(subject.model, subject.source.spec, shape)
