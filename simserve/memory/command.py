"""``simserve memory``: models × weights × memories, counted and printed."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from simserve.errors import FootprintError, ModelError
from simserve.memory.answer import STORED, Answer, Question, answer, require_fit
from simserve.memory.devices import Memory, parse_memory, parse_overhead
from simserve.memory.schemes import WeightScheme, parse_scheme, scheme_of_bits
from simserve.memory.shapes import Shape, load_shape, shape_from_dimensions, with_kv_heads
from simserve.memory.table import print_answer, print_answers
from simserve.model_spec import DTYPE_BYTES

DEFAULT_CONTEXTS, DEFAULT_USERS = (2_048, 8_192, 32_768), (1, 8, 64)
TABLE_CONTEXTS = (8_192,)
MAX_COUNT, MAX_DEVICES = 2**31 - 1, 1_024


@dataclass(frozen=True)
class MemoryOptions:
    """The command line as given; lists may hold several values in one text, with commas."""

    models: tuple[str, ...] = ()
    params: str | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    heads: int | None = None
    memory: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    weights_bits: tuple[str, ...] = ()
    kv_dtype: str = "fp16"
    overhead: str = "1.5GiB"
    tensor_parallel: int = 1
    context: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    json: bool = False


def show_memory(options: MemoryOptions, console: Console | None = None) -> None:
    """Count and print. Raises ``InputError`` in one sentence; one model that does not fit its one memory is wrong
    input, while in a table its row says so."""
    shapes = _shapes(options)
    memories: list[Memory | None] = [parse_memory(text) for text in _split(options.memory)]
    pairs = [(shape, scheme) for shape in shapes for scheme in _schemes(options, shape)]
    cells = [(*pair, memory) for pair in pairs for memory in memories or [None]]
    asked = _question(options, is_table=len(cells) > 1)
    answers = [answer(shape, scheme, memory, asked) for shape, scheme, memory in cells]
    if len(answers) == 1:
        require_fit(answers[0])
    if options.json:
        document = answers[0] if len(answers) == 1 else answers
        sys.stdout.write(jsonlib.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        return
    _print(answers, console or Console())


def _print(answers: Sequence[Answer], console: Console) -> None:
    if len(answers) == 1:
        print_answer(answers[0], console)
    else:
        print_answers(answers, console)


def _shapes(options: MemoryOptions) -> list[Shape]:
    own = {"--params": options.params, "--layers": options.layers, "--head-dim": options.head_dim}
    own["--heads"] = options.heads
    given = [name for name, value in own.items() if value is not None]
    if not options.models:
        if not given and options.kv_heads is None:
            raise ModelError(
                "model: must be given: a built-in name, a config.json, a GGUF file, or "
                "--params 13B --layers 40 --kv-heads 40 --head-dim 128"
            )
        return [
            shape_from_dimensions(options.params, options.layers, options.kv_heads, options.head_dim, options.heads)
        ]
    if given:
        raise ModelError(f"{', '.join(given)}: must be left out where a model is named (got {options.models[0]!r})")
    shapes = [load_shape(name) for name in options.models]
    return shapes if options.kv_heads is None else [with_kv_heads(shape, options.kv_heads) for shape in shapes]


def _schemes(options: MemoryOptions, shape: Shape) -> list[WeightScheme | None]:
    """The ways to keep this model's weights; None is as its file does, which is the default of one that says."""
    named = [None if text.lower() == STORED else parse_scheme(text) for text in _split(options.weights)]
    named += [scheme_of_bits(_bits(text)) for text in _split(options.weights_bits)]
    if named:
        return list(dict.fromkeys(named))
    return [None] if shape.stored_bytes is not None else [parse_scheme("fp16")]


def _bits(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FootprintError(
            f"--weights-bits: must be a number of bits per weight such as 4.125 (got {text!r})"
        ) from None


def _question(options: MemoryOptions, is_table: bool) -> Question:
    if not 1 <= options.tensor_parallel <= MAX_DEVICES:
        raise FootprintError(f"--tensor-parallel: must be from 1 to {MAX_DEVICES} (got {options.tensor_parallel})")
    if options.kv_dtype not in DTYPE_BYTES:
        raise FootprintError(f"--kv-dtype: must be one of {', '.join(DTYPE_BYTES)} (got {options.kv_dtype!r})")
    overhead = parse_overhead(options.overhead)
    contexts, users = _counts("--context", options.context), _counts("--users", options.users)
    together = bool(contexts and users) or not options.memory
    if not contexts and not users:
        contexts, users = (TABLE_CONTEXTS, ()) if is_table else (DEFAULT_CONTEXTS, DEFAULT_USERS)
    elif together:
        contexts, users = contexts or DEFAULT_CONTEXTS, users or (1,)
    return Question(options.kv_dtype, overhead, options.tensor_parallel, contexts, users, together)


def _counts(option: str, texts: Sequence[str]) -> tuple[int, ...]:
    counts = []
    for text in _split(texts):
        if not (text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= MAX_COUNT):
            raise FootprintError(f"{option}: must be whole numbers from 1 to {MAX_COUNT} (got {text!r})")
        counts.append(int(text))
    return tuple(dict.fromkeys(counts))


def _split(texts: Sequence[str]) -> list[str]:
    """Values of a repeatable option, each text holding one or several with commas."""
    return list(dict.fromkeys(part.strip() for text in texts for part in text.split(",")))
