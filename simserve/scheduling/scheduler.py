"""What the engine may ask of a policy."""

from __future__ import annotations

from typing import Protocol

from simserve.request import Batch, Request, Sequence, WaitUntil
from simserve.scheduling.pool import Pool


class Scheduler(Protocol):
    """A policy decides; it never reads a clock of its own nor a true output length (*oracle* queue orders excepted).

    The engine calls ``schedule`` -> (time passes) -> ``finish_step`` -> ``finish`` for each sequence that got its last
    token, and starts again. While the decision stands, ``schedule`` returns the same ``Batch`` object.
    """

    pool: Pool

    def refusal(self, request: Request) -> str | None:
        """Why the request can never be served; None if it can."""

    def schedule(self, now_ns: int, more_coming: bool) -> Batch | WaitUntil | None:
        """The next step's decision; when to look again; or nothing to do until something arrives."""

    def steady_steps(self, batch: Batch, max_steps: int) -> int:
        """The largest n ≤ ``max_steps`` for which the decision stands if nothing finishes or arrives before."""

    def can_interrupt(self, request: Request) -> bool:
        """Whether this arrival could change the standing decision."""

    def finish_step(self, batch: Batch, num_steps: int) -> list[Sequence]:
        """The decision was carried out ``num_steps`` times; returns the sequences whose prefill is complete."""

    def finish(self, seq: Sequence) -> list[Sequence]:
        """The sequence has its last token; returns those that are released, answers delivered, at this moment."""

    def abort(self, seq: Sequence) -> list[Sequence]:
        """Its client has left: the sequence, waiting or running, is dropped between two steps; returns those that are
        released at this moment."""
