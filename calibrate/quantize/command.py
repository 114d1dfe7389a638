"""``simserve quantize``: round every projection matrix of a model by every scheme, and say what that does to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from calibrate.errors import CalibrationError
from calibrate.model import ModelSource, find_model
from calibrate.partial import require_writable, write_atomically
from calibrate.quantize.document import assemble, scheme_row, software
from calibrate.quantize.greedy import answer, next_tokens
from calibrate.quantize.matrices import projections, rounded
from calibrate.quantize.options import QuantizeOptions
from calibrate.quantize.quality import Probe, Reading, compare, read
from calibrate.quantize.rounding import sharing
from calibrate.quantize.show import show_quantization
from calibrate.quantize.subject import Tokens, build, tokenize
from simserve.memory.schemes import WeightScheme, parse_scheme
from simserve.step_time.quality_schema import QUANTIZATION, Quantization

RANDOM = (
    "random weights: quality cannot be measured, only how far rounding moves each matrix; give a folder with trained "
    "weights (python -m calibrate.train makes one)"
)
NO_TEXT = "quality was not measured: give a text to judge the trained weights on, with --text FILE"
Advance = Callable[[str], None]


def quantize(options: QuantizeOptions, console: Console | None = None) -> Path:
    """Write what each scheme does to the weights and, with trained weights and a text, to answers; returns the path.

    Raises ``ModelError``, ``FootprintError``, ``OutputError`` or ``CalibrationError`` before anything is computed."""
    console = console or Console()
    schemes = _check(options)
    source = find_model(options.model)
    path = options.out or Path(f"{source.spec.name}{QUANTIZATION}")
    require_writable(path)
    if options.text is not None and not source.has_weights:
        raise CalibrationError(f"text: is for trained weights ({source.spec.name} has random ones here); leave it out")
    torch.set_num_threads(options.threads)
    tokens = tokenize(source, options.text) if options.text is not None else None
    if tokens is not None:  # too short a text is told before the model is built
        tokens.windows(options.windows, options.window_tokens)
        tokens.windows(options.answers, options.prompt_tokens)
    document = _measure(source, options, schemes, tokens, console)
    write_atomically(path, json.dumps(document.model_dump(mode="json"), indent=1) + "\n")
    show_quantization(document, console)
    console.print(f"wrote {path}")
    return path


def _measure(
    source: ModelSource,
    options: QuantizeOptions,
    schemes: tuple[WeightScheme, ...],
    tokens: Tokens | None,
    console: Console,
) -> Quantization:
    console.print(f"building {source.spec.name} ({source.spec.num_parameters:,} parameters, {options.dtype}, cpu)")
    model = build(source, options.dtype, options.seed)
    probe, full, rows = None, None, []
    with steps(console, len(schemes) + (2 if tokens else 0)) as advance:
        if tokens is not None:
            advance("answers in full precision")
            probe = make_probe(model, tokens, options)
            advance("quality in full precision")
            full = read(model, probe)
        for scheme in schemes:
            advance(scheme.label)
            with rounded(model, scheme) as errors:
                reading = read(model, probe) if probe else None
            quality = _compared(reading, full, options)
            rows.append(scheme_row(scheme, errors, quality))
    made: dict[str, Any] = {
        "name": source.spec.name,
        "model": options.model,
        "weights": "trained" if source.has_weights else "random",
        "dtype": options.dtype,
        "seed": options.seed,
        "num_matrices": len(projections(model)),
        "num_weights": sum(linear.weight.numel() for linear in projections(model).values()),
        "text": tokens.used if tokens else None,
        "full_precision": _compared(full, full, options),
        "rows": tuple(rows),
        "note": None if tokens else (NO_TEXT if source.has_weights else RANDOM),
        "software": software(options.command),
    }
    return assemble(made)


def make_probe(model: Any, tokens: Tokens, options: QuantizeOptions) -> Probe:  # noqa: ANN401 - a torch module
    """What all models will be asked: windows of the text, and the way that the full-precision model goes."""
    prompts = tokens.windows(options.answers, options.prompt_tokens)
    paths = answer(model, prompts, options.answer_tokens)
    chosen = next_tokens(model, paths, options.prompt_tokens)
    return Probe(tokens.windows(options.windows, options.window_tokens), paths, options.prompt_tokens, chosen)


def _compared(reading: Reading | None, full: Reading | None, options: QuantizeOptions) -> Any:  # noqa: ANN401
    if reading is None or full is None:
        return None
    return compare(reading, full, options.answer_tokens, options.seed)


@contextmanager
def steps(console: Console, total: int) -> Iterator[Advance]:
    """A progress bar; each call says what comes next."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total, completed=-1)

        def advance(what: str) -> None:
            progress.update(task, description=what, advance=1)

        yield advance


def _check(options: QuantizeOptions) -> tuple[WeightScheme, ...]:
    require_positive(options, ("windows", "answers", "prompt_tokens", "answer_tokens", "threads"))
    if options.window_tokens < 2:
        raise CalibrationError(
            f"window_tokens: must be ≥ 2, one to see and one to predict (got {options.window_tokens})"
        )
    if not options.schemes:
        raise CalibrationError("schemes: must name at least one, such as int4")
    schemes = tuple(dict.fromkeys(parse_scheme(text) for text in options.schemes))
    for scheme in schemes:
        sharing(scheme)
    return schemes


def require_positive(options: object, names: tuple[str, ...]) -> None:
    """Raise ``CalibrationError`` for the first of these options that is below 1."""
    for name in names:
        if getattr(options, name) < 1:
            raise CalibrationError(f"{name}: must be ≥ 1 (got {getattr(options, name)})")
