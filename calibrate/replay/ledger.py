"""Writes down what an engine does, and checks that it adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from calibrate.clock import Timing
from calibrate.errors import CalibrationError
from calibrate.replay.ask import AskedRequest
from simserve.recorded.steps import START, Decode, Prefill, ServedRequest, Stamp, StepRecord


class Taken(NamedTuple):
    """One step by the engine's own account: (request, new tokens, cached tokens) of each member, who was preempted
    before it, blocks that were free when it ran, tokens computed (None: the members' own), and who ended with it."""

    timing: Timing
    work: Sequence[tuple[int, int, int]]
    preempted: Sequence[int] = ()
    free_blocks: int | None = None
    num_batched_tokens: int | None = None
    finished: frozenset[int] = frozenset()


@dataclass
class _Progress:
    asked: AskedRequest
    added_at_step: int
    arrival: Stamp
    first_scheduled: Stamp | None = None
    tokens: list[Stamp] = field(default_factory=list)
    num_preemptions: int = 0
    is_running: bool = False
    decodes: bool = False

    @property
    def num_known_tokens(self) -> int:
        return len(self.asked.prompt) + len(self.tokens)

    @property
    def is_done(self) -> bool:
        return len(self.tokens) >= self.asked.num_output_tokens


class Ledger:
    """Steps and requests of one run."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.num_finished = 0
        self.last_begin = START
        self._progress: dict[int, _Progress] = {}

    @property
    def num_steps(self) -> int:
        """Steps taken."""
        return len(self.steps)

    @property
    def num_unfinished(self) -> int:
        """Requests handed over that have not got all their tokens."""
        return len(self._progress) - self.num_finished

    def added(self, asked: AskedRequest, arrival: Stamp) -> None:
        """The engine is told of a request."""
        self._progress[asked.id] = _Progress(asked, self.num_steps, arrival)

    def stepped(self, taken: Taken, begin: Stamp) -> Stamp:
        """A step that began at ``begin`` is done; when it ended. Raises ``CalibrationError`` if it served nobody, or
        if the engine ended others than those that have all their tokens."""
        if not taken.work:
            raise CalibrationError(f"engine: step {self.num_steps} must serve somebody (got nobody)")
        for i in taken.preempted:
            progress = self._progress[i]
            progress.is_running, progress.decodes = False, False
            progress.num_preemptions += 1
        end = Stamp(begin.cpu_s + taken.timing.cpu_s, begin.wall_s + taken.timing.wall_s)
        self.steps.append(self._record(taken, begin, end))
        self.last_begin = begin
        done = frozenset(i for i, new, context in taken.work if self._moves(i, new + context, end))
        if taken.finished and taken.finished != done:
            what = f"must end the requests that have all their tokens, {sorted(done)}"
            raise CalibrationError(f"engine: step {self.num_steps - 1} {what} (got {sorted(taken.finished)})")
        self.num_finished += len(done)
        return end

    def requests(self) -> tuple[ServedRequest, ...]:
        """All requests, by id."""
        return tuple(_served(self._progress[i]) for i in sorted(self._progress))

    def _record(self, taken: Taken, begin: Stamp, end: Stamp) -> StepRecord:
        prefills, decodes, admitted = [], [], []
        for i, new, context in taken.work:
            progress = self._progress[i]
            if not progress.is_running:
                admitted.append(i)
                progress.is_running = True
                progress.first_scheduled = progress.first_scheduled or begin
            if progress.decodes:
                decodes.append(Decode(i, context))
            else:
                prefills.append(Prefill(i, new, context))
        tokens = sum(new for _, new, _ in taken.work) if taken.num_batched_tokens is None else taken.num_batched_tokens
        return StepRecord(
            prefills=tuple(prefills),
            decodes=tuple(decodes),
            admitted=tuple(admitted),
            preempted=tuple(taken.preempted),
            num_batched_tokens=tokens,
            free_blocks=taken.free_blocks,
            begin=begin,
            end=end,
        )

    def _moves(self, i: int, num_computed_tokens: int, end: Stamp) -> bool:
        """The request has so many tokens in the cache now; whether it has got its last token with that."""
        progress = self._progress[i]
        if num_computed_tokens < progress.num_known_tokens:
            return False
        progress.tokens.append(end)
        progress.decodes = True
        return progress.is_done


def _served(progress: _Progress) -> ServedRequest:
    assert progress.first_scheduled is not None
    return ServedRequest(
        id=progress.asked.id,
        num_prompt_tokens=len(progress.asked.prompt),
        num_output_tokens=progress.asked.num_output_tokens,
        added_at_step=progress.added_at_step,
        arrival=progress.arrival,
        first_scheduled=progress.first_scheduled,
        tokens=tuple(progress.tokens),
        num_preemptions=progress.num_preemptions,
    )
