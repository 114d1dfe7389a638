"""Who measured, on what, with what: gathered when the run begins."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

from calibrate.clock import choose_clock
from calibrate.grid import Point
from calibrate.model import ModelSource
from calibrate.options import CalibrateOptions
from simserve.step_time.profile_schema import ModelDimensions, Provenance


def make_provenance(source: ModelSource, device: str, dtype: str, options: CalibrateOptions) -> Provenance:
    """Everything about this run but its duration and notes."""
    dimensions = ModelDimensions.of(source.spec)
    clock, reason = choose_clock(device, options.threads)
    return Provenance(
        model=source.spec.name,
        dimensions=dimensions,
        config_hash=dimensions.config_hash,
        weights="trained" if source.has_weights else "random",
        device="cuda" if device == "cuda" else "cpu",
        device_name=torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        driver=_driver() if device == "cuda" else "none (CPU)",
        num_cpus=os.cpu_count() or 1,
        threads=options.threads,
        dtype=dtype,
        weight_scheme=options.weights,
        attention=options.attn,
        kv_cache=options.kv_cache,
        graphs=options.graphs,
        clock=clock,
        clock_reason=reason,
        torch_version=torch.__version__,
        transformers_version=transformers.__version__,
        python_version=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        command=options.command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        duration_s=0.0,
    )


def identity(provenance: Provenance, points: Sequence[Point], options: CalibrateOptions) -> dict[str, Any]:
    """What must be equal for the samples of two runs to belong together."""
    fields = ("origin", "source", "config_hash", "weights", "device_name", "driver", "threads", "dtype", "attention")
    versions = ("weight_scheme", "kv_cache", "graphs", "clock", "torch_version", "transformers_version", "platform")
    made = {name: getattr(provenance, name) for name in (*fields, *versions)}
    return made | {"points": [list(point) for point in points], "seed": options.seed}


def cpu_name() -> str:
    """The processor's name for itself, where the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _driver() -> str:
    cuda = f"CUDA {torch.version.cuda}"
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return cuda
    return f"{first.split(':', 1)[-1].strip()}; {cuda}"
