"""Measured steps and closed loops of real accelerators, read from published tables into batches and seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibrate.importers import llmservingsim, vidur
from simserve.model_spec import ModelSpec, load_model_spec
from simserve.request import Batch, Chunk


@dataclass(frozen=True)
class MeasuredSteps:
    """Whole steps: what was computed, by which model in which precision, and the seconds it took."""

    model: ModelSpec
    tensor_parallel: int
    dtype: str
    kv_dtype: str
    batches: list[Batch]
    seconds: npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClosedLoopPoint:
    """A server that always holds ``concurrency`` equal requests; ``busy_s`` is latency over concurrency."""

    dtype: str
    tensor_parallel: int
    concurrency: int
    num_prompt_tokens: int
    num_output_tokens: int
    busy_s: float


def h200_steps(data: Path) -> MeasuredSteps:
    """Llama-3.1-8B with fp8 weights and a 16-bit cache on one H200: prefills alone, and decodes of equal context."""
    table = pd.read_csv(data / "measured/step-times/h200_llama3.1-8b-fp8_vllm.csv")
    batches = [
        Batch(chunks=(Chunk(row.new_tokens, row.context_tokens),))
        if row.phase == "prefill"
        else Batch(num_decodes=row.batch_size, decode_context_tokens=row.batch_size * row.context_tokens)
        for row in table.itertuples()
    ]
    return MeasuredSteps(
        load_model_spec("llama-3.1-8b"), 1, "fp8", "bf16", batches, table.step_time_ms.to_numpy() / 1e3
    )


def llmservingsim_steps(data: Path, card: str, max_cached_tokens: int) -> MeasuredSteps:
    """Llama-3.1-8B in bf16 under vLLM: 32 times the operators of a layer, and those of a step, at every measured
    attention shape of at most ``max_cached_tokens`` cached tokens, 2,048 new ones and 256 rows."""
    folder = data / "profiles/llmservingsim" / card / "Llama-3.1-8B/bf16/tp1"
    shapes = llmservingsim.compose(folder, num_layers=32)
    cached = shapes.kv_prefill + shapes.prefill_chunk + shapes.n_decode * (shapes.kv_decode + 1)
    shapes = shapes[cached <= max_cached_tokens]
    batches = [
        Batch(
            chunks=(Chunk(row.prefill_chunk, row.kv_prefill),) if row.prefill_chunk else (),
            num_decodes=row.n_decode,
            decode_context_tokens=row.n_decode * row.kv_decode,
        )
        for row in shapes.itertuples()
    ]
    return MeasuredSteps(load_model_spec("llama-3.1-8b"), 1, "bf16", "bf16", batches, shapes.seconds.to_numpy())


def vidur_steps(data: Path) -> MeasuredSteps:
    """Llama-2-70B in fp16 on two A100: 80 times the operators of a layer, medians over repeats. The tables hold no
    output head, so the model is given a vocabulary of one, and no all-reduce."""
    folder = data / "profiles/vidur/a100/llama-2-70b"
    shapes = vidur.compose(folder / "mlp.csv.gz", folder / "attention_tp2.csv.gz", tensor_parallel=2, num_layers=80)
    batches = [
        Batch(chunks=(Chunk(row.prefill_chunk_size, row.kv_cache_size),))
        if row.is_prefill
        else Batch(num_decodes=row.batch_size, decode_context_tokens=row.batch_size * row.kv_cache_size)
        for row in shapes.itertuples()
    ]
    headless = replace(load_model_spec("llama-2-70b"), vocab_size=1)
    return MeasuredSteps(headless, 2, "fp16", "fp16", batches, shapes.seconds.to_numpy())


def closed_loop_points(data: Path, system: str, model: str = "meta-llama/Llama-3.1-70B") -> list[ClosedLoopPoint]:
    """``model`` under vLLM on ``system`` (``h100_sxm`` or ``h200_sxm``), repeats left out: Llama-3.1-70B in fp8, or
    Qwen3-32B, whose blank precision must be 16 bits, since a decode takes as long as reading 2 bytes each."""
    table = pd.read_csv(data / "measured/aiconfigurator/silicon_sample.csv.gz")
    table = table[(table["mode"] == "agg") & (table.backend == "vllm") & (table.system == system)]
    is_fp8 = table.precision == "fp8"
    table = table[(table.model_path == model) & (is_fp8 if "Llama" in model else table.precision.isna())]
    shape = ["isl", "osl", "batch_size", "tp_size"]
    table = table.drop_duplicates([*shape, "silicon_ttft_ms", "silicon_tpot_ms"])
    latency_s = (table.silicon_ttft_ms + table.silicon_tpot_ms * (table.osl - 1)) / 1e3
    dtype = "fp8" if "Llama" in model else "bf16"
    return [
        ClosedLoopPoint(dtype, int(tp), int(size), int(prompt), int(output), float(seconds / size))
        for prompt, output, size, tp, seconds in zip(*(table[c] for c in shape), latency_s, strict=True)
    ]
