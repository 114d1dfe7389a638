"""AIConfigurator's installed database: operators that NVIDIA measured, composed to whole steps by its own engine.

Steps are asked for on the grid that a GPU would be calibrated on, as far as it fits the memory of the devices. The
package may live in an environment of its own: it is driven as a child process (``aiconfigurator_child.py``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrate.grid import Limits, make_axes
from calibrate.importers.reading import ImportOptions, Reading
from simserve.errors import ProfileError
from simserve.model_spec import ModelSpec, load_model_spec
from simserve.step_time.source import MeasuredPoint

Phase = Literal["prefill", "decode"]
Shape = tuple[int, int]
CHILD_SCRIPT = Path(__file__).with_name("aiconfigurator_child.py")
TIMEOUT_S = 600.0
_GEMM = {"bf16": "bfloat16", "fp8": "fp8", "int8": "int8_wo"}
# Mistral's dense decoder has the operators of Llama's, and AIConfigurator knows it by no name of its own.
_ARCHITECTURES = {"llama": "Llama", "mistral": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}

_SOURCES = {
    "silicon": "interpolated between measured kernels",
    "mixed": "measured kernels completed by formulas",
    "empirical": "formulas alone",
}


@dataclass(frozen=True)
class DatabaseQuery:
    """Whose measurements: ``system`` and ``backend`` as AIConfigurator names them (``h200_sxm``, ``trtllm``), a
    version of the backend (``None``: its newest maintained one), and the Python that has AIConfigurator (``None``:
    this one)."""

    system: str | None = None
    backend: str = "trtllm"
    backend_version: str | None = None
    python: Path | None = None


def read_aiconfigurator(query: DatabaseQuery, options: ImportOptions) -> Reading:
    """Compose the steps of ``options.model`` in ``options.dtype`` (cache and attention in bf16). Raises
    ``ProfileError`` or ``ModelError`` in one sentence."""
    for field, value in (("system", query.system), ("model", options.model), ("dtype", options.dtype)):
        if not value:
            raise ProfileError(f"aiconfigurator: {field}: must be given; add --{field}")
    spec, dtype, parallel = load_model_spec(options.model or ""), options.dtype or "", options.tensor_parallel or 1
    if dtype not in _GEMM:
        raise ProfileError(f"aiconfigurator: dtype: must be one of {', '.join(_GEMM)} (got {dtype!r})")
    shapes = _shapes()
    answer = _ask(query.python or Path(sys.executable), _request(query, spec, dtype, parallel, shapes))
    room = int(answer["memory_bytes"]) * parallel - spec.weight_bytes(dtype)
    points, notes = _points(answer, shapes, room // spec.kv_bytes_per_token("bf16"))
    backend = f"{query.backend} {answer['backend_version']}"
    return Reading(
        points,
        notes=(
            f"whole steps composed by AIConfigurator of operator times under {backend}: the time "
            "between kernels and the engine's own work are not in them",
            f"weights in {dtype}, attention and KV cache in bf16; set engine.kv_cache.dtype to bf16",
            *notes,
        ),
        model=options.model,
        device_name=query.system,
        dtype=dtype,
        tensor_parallel=parallel,
        source=f"AIConfigurator {answer['version']} (Apache-2.0), database of {query.system}, {backend}",
    )


def _shapes() -> dict[Phase, list[Shape]]:
    prefill, decode, _ = make_axes("standard", on_gpu=True, limits=Limits())
    return {
        "prefill": list(product(prefill.rows, prefill.contexts)),
        "decode": list(product(decode.rows, decode.contexts)),
    }


def _request(
    query: DatabaseQuery, spec: ModelSpec, dtype: str, parallel: int, shapes: dict[Phase, list[Shape]]
) -> dict[str, Any]:
    architecture = f"{_ARCHITECTURES[spec.family]}ForCausalLM"
    return {
        "config": {**spec.to_hf_config(), "architectures": [architecture]},
        "system": query.system,
        "backend": query.backend,
        "backend_version": query.backend_version,
        "tensor_parallel": parallel,
        "gemm": _GEMM[dtype],
        "attention": "bfloat16",
        "prefill": shapes["prefill"],
        "decode": shapes["decode"],
    }


def _ask(python: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The child's answer. ``-P`` keeps the folder of the script, with modules of ours, off its path."""
    done = _run([str(python), "-P", str(CHILD_SCRIPT)], request)
    where = f"aiconfigurator: {python}"
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1][:200]
        raise ProfileError(f"{where}: ended with exit code {done.returncode} and no answer ({last})")
    if "missing" in answer:
        remedy = "pip install aiconfigurator, or name the Python that has it with --python"
        raise ProfileError(f"{where}: cannot import AIConfigurator ({answer['missing']}); {remedy}")
    if "error" in answer:
        raise ProfileError(f"aiconfigurator: {answer['error']}")
    return answer


def _run(command: list[str], request: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=TIMEOUT_S,
        )
    except OSError as error:
        raise ProfileError(f"aiconfigurator: {command[0]}: cannot be run ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise ProfileError(
            f"aiconfigurator: {command[0]}: must answer within {TIMEOUT_S:.0f} s (got no answer)"
        ) from error


def _points(
    answer: dict[str, Any], shapes: dict[Phase, list[Shape]], max_cache_tokens: int
) -> tuple[tuple[MeasuredPoint, ...], list[str]]:
    """The steps that the database reaches and that fit the memory, and where their times come from."""
    points: list[MeasuredPoint] = []
    notes, refused, unfit = [], [], 0
    for phase, asked in shapes.items():
        used = []
        for (row, context), step in zip(asked, answer[phase], strict=True):
            if (row + context if phase == "prefill" else row * (context + 1)) > max_cache_tokens:
                unfit += 1
            elif "error" in step:
                refused.append(str(step["error"]))
            else:
                used.append(step)
                batch, new = (1, row) if phase == "prefill" else (row, 1)
                points.append(MeasuredPoint(phase, batch, new, context, sum(step.values()) / 1e3))
        if not used:
            why = f"; the first was refused with {refused[0]}" if refused else ", since none fits the devices' memory"
            raise ProfileError(f"aiconfigurator: {phase}: must have steps to import (got none{why})")
        notes.append(_source_words(phase, used))
    if unfit:
        notes.append(f"{unfit} steps of the grid are left out, as their KV cache does not fit beside the weights")
    if refused:
        notes.append(f"{len(refused)} steps of the grid are left out, as the database does not reach them")
    return tuple(points), notes


def _source_words(phase: Phase, steps: Sequence[dict[str, float]]) -> str:
    shares = {name: np.mean([step.get(name, 0.0) / sum(step.values()) for step in steps]) for name in _SOURCES}
    parts = ", ".join(f"{shares[name]:.0%} {words}" for name, words in _SOURCES.items())
    return f"{phase} times by AIConfigurator's own account, mean over the grid: {parts}"
