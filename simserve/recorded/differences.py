"""Two runs held against each other step by step. Scheduling has no tolerance: compositions are equal or they are not.

A composition is who prefills (tokens, over how many cached ones), who decodes (over how many), who was admitted and
preempted, and how many blocks are free. Order within a step is not part of it: a batch is a set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from simserve.recorded.steps import StepRecord

FIELDS = ("prefills", "decodes", "admitted", "preempted", "num_batched_tokens", "free_blocks")
_MOST_SHOWN = 12


@dataclass(frozen=True)
class Difference:
    """The first step, counted from 0, that is not the same in both; None where a run had ended."""

    index: int
    fields: tuple[str, ...]
    measured: StepRecord | None
    simulated: StepRecord | None

    def __str__(self) -> str:
        """One line: which step, in what, and both sides' state."""
        what = ", ".join(self.fields)
        return f"step {self.index} differs in {what}: measured {_say(self.measured)}; simulated {_say(self.simulated)}"


@dataclass(frozen=True)
class StepComparison:
    """``compared`` is the number of steps of the longer run; ``identical`` of those that are the same in both, counted
    at the same index."""

    compared: int
    identical: int
    first: Difference | None


def compare_steps(measured: Sequence[StepRecord], simulated: Sequence[StepRecord]) -> StepComparison:
    """Compare two runs' compositions. Free blocks are compared where both sides tell them."""
    identical, first = 0, None
    for index, (real, ours) in enumerate(zip_longest(measured, simulated)):
        differing = _differing(real, ours)
        identical += not differing
        if differing and first is None:
            first = Difference(index, differing, real, ours)
    return StepComparison(max(len(measured), len(simulated)), identical, first)


def _differing(real: StepRecord | None, ours: StepRecord | None) -> tuple[str, ...]:
    if real is None or ours is None:
        return ("the number of steps",)
    told = [name for name in FIELDS if getattr(real, name) is not None and getattr(ours, name) is not None]
    return tuple(name for name in told if _canonical(real, name) != _canonical(ours, name))


def _canonical(step: StepRecord, name: str) -> object:
    value = getattr(step, name)
    return sorted(value) if isinstance(value, tuple) else value


def _say(step: StepRecord | None) -> str:
    if step is None:
        return "had ended"
    prefills = [f"{work.id} ({work.num_new_tokens} over {work.num_context_tokens})" for work in sorted(step.prefills)]
    decodes = [f"{work.id} (over {work.num_context_tokens})" for work in sorted(step.decodes)]
    parts = [f"prefills {_few(prefills)}", f"decodes {_few(decodes)}"]
    parts += [f"admits {_few([str(i) for i in step.admitted])}"] if step.admitted else []
    parts += [f"preempts {_few([str(i) for i in step.preempted])}"] if step.preempted else []
    return ", ".join(parts) + ("" if step.free_blocks is None else f", {step.free_blocks} blocks free")


def _few(words: list[str]) -> str:
    shown = " ".join(words[:_MOST_SHOWN]) or "nobody"
    return shown if len(words) <= _MOST_SHOWN else f"{shown} and {len(words) - _MOST_SHOWN} more"
