"""What a profile was fitted to: timed steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from simserve.step_time.profile_fit import Count, HeldOutError, Positive, Seconds, Share, Strict

Clock = Literal["process_cpu", "wall", "cuda_events"]


class Sample(Strict):
    """One timed step. ``cpu_s`` is the process CPU clock, ``cuda_s`` a pair of CUDA events, ``host_s`` how
    long the host took to launch the step (null off a GPU); ``other_cpus`` is how many
    CPUs other processes kept busy meanwhile (null where the system does not tell); ``order`` counts all timed steps
    of the run; a ``dirty`` sample was disturbed and is kept, but not fitted unless its point has no clean one.

    ``batch_size`` sequences compute ``num_new_tokens`` over ``num_context_tokens`` each: prompts packed into one row
    (``prefill``), one token each (``decode``), a chunk (``mixed``), or a whole sequence without a cache (``no_cache``).
    ``num_decodes`` more decode in the same row over ``num_decode_context_tokens`` each (``mixed``). Contexts of decodes
    are spread evenly from 1 − ``context_spread`` to 1 + ``context_spread`` times their mean. ``session`` counts the
    processes that measured; an ``anchor`` sample is of the one point that is visited again and again to see drift.
    ``num_repeats`` steps of the same decision came right before, each over a context shorter by one; before the others
    came one of another shape.
    """

    phase: Literal["prefill", "decode", "mixed", "no_cache"]
    batch_size: Positive
    num_new_tokens: Positive
    num_context_tokens: Count
    wall_s: Seconds
    cpu_s: Share | None
    cuda_s: Share | None
    other_cpus: Share | None
    order: Count
    held_out: bool
    dirty: bool
    num_decodes: Count = 0
    num_decode_context_tokens: Count = 0
    context_spread: Share = 0.0
    host_s: Share | None = None
    session: Count = 0
    anchor: bool = False
    num_repeats: Count = 0

    @property
    def shape(self) -> tuple[str, int, int, int, int, int, float]:
        """What identifies its point: phase, batch size, new and context tokens, decodes beside it, spread."""
        beside = self.num_decodes, self.num_decode_context_tokens
        return self.phase, self.batch_size, self.num_new_tokens, self.num_context_tokens, *beside, self.context_spread

    def seconds(self, clock: Clock) -> float:
        """The step time by the clock that was chosen; the wall clock where that was not read."""
        chosen = {"process_cpu": self.cpu_s, "wall": self.wall_s, "cuda_events": self.cuda_s}[clock]
        return chosen or self.wall_s


class StepOverhead(Strict):
    """What the tables hold beyond the bare forwards that ``samples`` of the profile timed: seconds per step, per
    sequence in it, and per (new token, key) pair of different sequences, fitted on steps of the engine ``source``.
    ``before`` and ``after`` are the errors on steps of it that were not fitted; ``samples`` are its steps, of both
    kinds."""

    source: str
    date: str
    command: str
    constant_s: Share
    per_sequence_s: Share
    per_foreign_pair_s: Share
    before: HeldOutError
    after: HeldOutError
    samples: tuple[Sample, ...] = Field(min_length=1)


class RepeatedSteps(Strict):
    """Decode steps that follow several of their own decision, as in a group that decodes on and on: the times of the
    table, whose steps follow others of another shape, times the ``ratios`` of their batch sizes. ``samples`` are all
    that were timed, those held out with them."""

    batch_sizes: tuple[Positive, ...] = Field(min_length=1)
    ratios: tuple[Seconds, ...] = Field(min_length=1)
    samples: tuple[Sample, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _in_order(self) -> RepeatedSteps:
        if len(self.batch_sizes) != len(self.ratios):
            raise ValueError(f"{len(self.batch_sizes)} batch sizes but {len(self.ratios)} ratios")
        if any(b <= a for a, b in pairwise(self.batch_sizes)):
            raise ValueError("batch sizes must increase")
        return self
