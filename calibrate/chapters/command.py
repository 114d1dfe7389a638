"""``simserve chapters``: build the model, measure every table, write the file, show it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from calibrate.chapters.options import ChaptersOptions
from calibrate.errors import CalibrationError
from calibrate.model import find_model
from calibrate.options import CalibrateOptions
from calibrate.partial import require_writable, write_atomically
from simserve.step_time.chapters_schema import CHAPTERS_VERSION, SUFFIX, Chapters
from simserve.step_time.profile_schema import Provenance, content_digest

LEAST_TOKENS = 16


def measure_to_file(options: ChaptersOptions, console: Console | None = None) -> Path:
    """Measure the chapters' tables on this machine and write them; returns the file's path.

    Raises ``ModelError``, ``OutputError`` or ``CalibrationError`` before anything is measured."""
    console = console or Console()
    began = time.perf_counter()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is loaded: its profiler talks on stderr
    device, dtype = _check(options)
    source = find_model(options.model)
    path = options.out or Path(f"{source.spec.name}-{device}-{dtype}{SUFFIX}")
    require_writable(path)

    import torch

    from calibrate.chapters.measure import Subject, measure_chapters
    from calibrate.chapters.show import show_chapters
    from calibrate.chapters.timing import Watch
    from calibrate.clock import choose_clock, time_on_cpu, time_on_cuda
    from calibrate.model import build_model
    from calibrate.provenance import make_provenance

    console.print(f"building {source.spec.name} ({source.spec.num_parameters:,} parameters, {dtype}, {device})")
    torch.set_num_threads(options.threads)
    model = build_model(source, device, dtype, options.attn, options.seed)
    clock, _reason = choose_clock(device, options.threads)
    watch = Watch(time_on_cuda if device == "cuda" else time_on_cpu, clock, options.repeats, options.seed)
    subject = Subject(source, model, device, options.attn, watch, options.max_tokens)
    tables = measure_chapters(subject, lambda what: console.print(f"measuring {what}"))
    made = make_provenance(source, device, dtype, _as_calibration(options))
    chapters = assemble(path.name.removesuffix(SUFFIX), made, tables, time.perf_counter() - began)
    write_atomically(path, json.dumps(chapters.model_dump(mode="json"), indent=1) + "\n")
    show_chapters(chapters, console)
    console.print(f"wrote {path} in {time.perf_counter() - began:.1f} s")
    return path


def assemble(name: str, provenance: Provenance, tables: dict[str, Any], duration_s: float) -> Chapters:
    """The file's content, digest and all. Raises ``ValidationError`` if a cache disagrees with its formula."""
    made = provenance.model_copy(update={"duration_s": round(duration_s, 1)})
    version: Any = CHAPTERS_VERSION
    chapters = Chapters(schema_version=version, name=name, provenance=made, **tables, digest="")
    return chapters.model_copy(update={"digest": content_digest(chapters.model_dump(mode="json"))})


def _check(options: ChaptersOptions) -> tuple[str, str]:
    """Device and dtype in full. Raises ``CalibrationError`` for what cannot be had here."""
    for name, least in (("threads", 1), ("repeats", 1), ("max_tokens", LEAST_TOKENS)):
        if getattr(options, name) < least:
            raise CalibrationError(f"{name}: must be ≥ {least} (got {getattr(options, name)})")
    import torch

    has_gpu = torch.cuda.is_available()
    if options.device == "cuda" and not has_gpu:
        raise CalibrationError("device: must be one that torch can use (got cuda, and torch sees no GPU); use cpu")
    device = "cuda" if has_gpu and options.device != "cpu" else "cpu"
    return device, options.dtype if options.dtype != "auto" else ("bf16" if device == "cuda" else "fp32")


def _as_calibration(options: ChaptersOptions) -> CalibrateOptions:
    return CalibrateOptions(
        model=options.model,
        device=options.device,
        dtype=options.dtype,
        attn=options.attn,
        threads=options.threads,
        seed=options.seed,
        command=options.command,
    )
