"""What a serving engine must offer so that its steps can be timed, and how a point of the grid becomes one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from calibrate.clock import Timing
from calibrate.contention import Reading
from calibrate.errors import CalibrationError
from calibrate.grid import Point

StepShape = tuple[tuple[int, int], ...]
"""(new tokens, cached tokens) of every sequence in one step, decodes first."""


@dataclass(frozen=True)
class EngineSize:
    """What an engine must be able to hold: limits of one step, the longest sequence, and blocks of its cache."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int

    @classmethod
    def of(cls, shapes: Iterable[StepShape], block_size: int) -> EngineSize:
        """Large enough for each of ``shapes``, one at a time, with room for the token that a step emits."""
        steps = list(shapes)
        return cls(
            max_num_seqs=max(len(step) for step in steps),
            max_num_batched_tokens=max(sum(new for new, _ in step) for step in steps),
            max_model_len=max(new + context + 1 for step in steps for new, context in step),
            num_blocks=max(sum(-(-(new + context + 1) // block_size) for new, context in step) for step in steps),
        )


@dataclass(frozen=True)
class EngineFacts:
    """What a started engine tells about itself; ``kv_bytes_per_token`` is counted in its tensors."""

    source: str
    attention: str
    kv_cache: str
    kv_bytes_per_token: int
    torch_version: str
    transformers_version: str
    python_version: str


class Engine(Protocol):
    """A real engine, driven one step at a time."""

    def extra_bytes_per_token(self, shapes: Sequence[StepShape]) -> int:
        """Memory that it takes per token of its cache beside keys and values."""

    def start(self, shapes: Sequence[StepShape]) -> EngineFacts:
        """Build it, large enough for ``shapes``. Raises ``CalibrationError`` in one sentence."""

    def prepare(self, shape: StepShape, num_steps: int = 1) -> None:
        """Drop whatever it was serving and bring it to where its next step is ``shape``, and so many steps can be taken
        before another ``prepare``, each over contexts longer by what the one before computed."""

    def step(self) -> Timing:
        """One step of its own loop (schedule, inputs, forward, sampling, bookkeeping), timed where it runs."""

    def computed(self) -> StepShape:
        """What the last step really was, by the engine's own account."""

    def read_machine(self) -> Reading | None:
        """Counters of the machine, the engine's CPU seconds counted as our own."""

    def stop(self) -> None:
        """Let go of it; may be called twice."""


class EngineSteps:
    """Offers an engine's steps to ``measure.Measurer``, and holds every one to the point that it was taken for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: StepShape = ()
        self._timing = Timing(0.0, 0.0)

    def prepare(self, point: Point) -> None:
        """Bring the engine to the step of ``point``, or to the first of its chain."""
        first = point._replace(num_context_tokens=point.num_context_tokens - point.num_repeats)
        self._asked = shape_of(first)
        self._engine.prepare(self._asked, point.num_repeats + 1)

    def step(self) -> None:
        """Run the step; the engine times it."""
        self._timing = self._engine.step()

    def timer(self, step: Callable[[], object]) -> Timing:
        """The engine's timing of ``step``. Raises ``CalibrationError`` if the step was another than the one asked for:
        then this version of the engine schedules in a way that the driver does not know, and no sample can be trusted.
        """
        step()
        computed = self._engine.computed()
        if sorted(computed) != sorted(self._asked):
            raise CalibrationError(
                f"engine: its step must be {_words(self._asked)} (got {_words(computed)}); "
                "use a version of the engine that this one was made for"
            )
        self._asked = tuple((1, cached + new) for new, cached in self._asked)  # what follows by itself
        return self._timing


def shape_of(point: Point) -> StepShape:
    """The sequences of the step that ``point`` names."""
    if point.phase == "decode":
        return tuple((1, context) for context in point.decode_contexts())
    prompts = ((point.num_new_tokens, point.num_context_tokens),) * point.batch_size
    return ((1, point.num_decode_context_tokens),) * point.num_decodes + prompts


def _words(shape: StepShape) -> str:
    counts: dict[tuple[int, int], int] = {}
    for sequence in shape:
        counts[sequence] = counts.get(sequence, 0) + 1
    parts = [f"{n} × {new} new tokens over {context}" for (new, context), n in counts.items()]
    return " + ".join(parts) or "empty"
