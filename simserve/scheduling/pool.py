"""The sequences in a policy's care, and the moves between waiting, running and gone that all policies share."""

from __future__ import annotations

from dataclasses import dataclass

from simserve.kv_cache import Allocator
from simserve.request import Batch, Request, Sequence
from simserve.scheduling.cohort import DecodeCohort
from simserve.scheduling.queue import QueueOrder, WaitingQueue


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one step, and the longest prompt + output that the model takes (tokens)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


class Pool:
    """Waiting queue, decoding cohort and cache of one engine; running = admitted and not yet released."""

    def __init__(self, limits: Limits, allocator: Allocator, order: QueueOrder = "fcfs") -> None:
        self.limits = limits
        self.allocator = allocator
        self.waiting = WaitingQueue(order)
        self.cohort = DecodeCohort()
        self.num_running = 0
        self.num_held = 0  # answered, and their slots and cache not let go of yet
        self._held: tuple[list[Sequence], list[Sequence]] = [], []  # since the last decision, and before it
        self._num_admissions = 0
        self.other_tokens = 0  # in the cache, of running sequences that do not decode

    @property
    def used_tokens(self) -> int:
        """Tokens in the cache, those that sequences share counted once."""
        return self.cohort.context_tokens + self.other_tokens - self.allocator.shared_tokens

    @property
    def has_free_slot(self) -> bool:
        """Whether another sequence may run."""
        return self.num_running + self.num_held < self.limits.max_num_seqs

    def refusal(self, request: Request) -> str | None:
        """Why a request can never be served by any policy over this cache; None if it can."""
        if request.num_total_tokens > self.limits.max_model_len:
            return (
                f"prompt + output of {request.num_total_tokens} tokens exceed max_model_len {self.limits.max_model_len}"
            )
        return self.allocator.refusal(request)

    def unchunked_refusal(self, request: Request) -> str | None:
        """The same for policies that compute a prompt in one step: it, and what a preemption recomputes, must fit."""
        tokens = request.num_total_tokens - 1 if self.allocator.can_preempt else request.num_prompt_tokens
        if tokens <= self.limits.max_num_batched_tokens:
            return self.refusal(request)
        what = "prompt + output - 1 (what a preempted sequence recomputes)" if self.allocator.can_preempt else "prompt"
        limit = self.limits.max_num_batched_tokens
        return f"{what} of {tokens} tokens exceeds max_num_batched_tokens {limit}, and the policy does not chunk"

    def admit_swapped(self, room_tokens: int) -> tuple[Sequence, int]:
        """Bring the swapped head of the queue back to decode, with room for ``room_tokens``; it and the bytes moved."""
        seq = self._next()
        moved = self.allocator.swap_in(seq, room_tokens)
        seq.is_swapped = False
        self.cohort.join(seq)
        self.allocator.start_growth(seq, room_tokens)
        return seq, moved

    def admit(self, num_tokens: int, num_cached_tokens: int = 0) -> Sequence:
        """Let the head of the queue run, with room for ``num_tokens`` beyond those that it finds in the cache."""
        seq = self._next()
        if seq.num_preemptions == 0:
            seq.look_up = self.allocator.look_up(seq)
        if num_cached_tokens:
            seq.num_computed_tokens = num_cached_tokens
            seq.num_prefix_hit_tokens += num_cached_tokens
            self.other_tokens += num_cached_tokens
        self.allocator.allocate(seq, num_cached_tokens + num_tokens)
        return seq

    def start_decoding(self, seq: Sequence) -> None:
        """A prefill is complete and its token emitted: the sequence joins the cohort."""
        seq.num_generated_tokens += 1
        self.cohort.join(seq)
        self.allocator.start_growth(seq, seq.num_computed_tokens)

    def carry_out_unmixed(self, batch: Batch, num_steps: int) -> list[Sequence]:
        """Account for ``num_steps`` decode steps, or one step of whole prefills; the sequences that it completed."""
        if not batch.prefills:
            self.cohort.advance(num_steps)
            self.allocator.grow(num_steps - 1)  # the first step's blocks were handed out when it was decided
            return []
        for seq, tokens in batch.prefills:
            self.other_tokens -= seq.num_computed_tokens  # what it found in the cache
            seq.num_computed_tokens += tokens
            self.start_decoding(seq)
        return [seq for seq, _ in batch.prefills]

    def preempt(self, seq: Sequence) -> int:
        """Put a running sequence back at the head of the queue; the bytes swapped out (0: it will recompute)."""
        if seq.joined_clock >= 0:
            self.cohort.leave(seq)
            moved = self.allocator.swap_out(seq)
        else:
            self.other_tokens -= seq.num_computed_tokens
            moved = 0
        if moved:
            seq.is_swapped = True
        else:
            self.allocator.free(seq)
            seq.num_recomputed_tokens += seq.num_computed_tokens
            seq.num_computed_tokens = 0
        self.num_running -= 1
        seq.num_preemptions += 1
        self.waiting.push(seq)
        return moved

    def release(self, seq: Sequence) -> None:
        """A running sequence is done: its slot and cache are free."""
        self.allocator.free(seq)
        self.num_running -= 1

    def hold(self, seq: Sequence) -> None:
        """A decoding sequence has its last token, and its slot and cache are let go of later."""
        self.cohort.leave(seq)
        self.allocator.stop_growth(seq)
        self.other_tokens += seq.num_computed_tokens
        self.num_running -= 1
        self.num_held += 1
        self._held[0].append(seq)

    def release_held(self, everyone: bool) -> None:
        """A decision is made: free what was held before the last one, or everything that is held."""
        since, before = self._held
        for seq in [*before, *(since if everyone else ())]:
            self.allocator.free(seq)
            self.other_tokens -= seq.num_computed_tokens
            self.num_held -= 1
        self._held = [], [] if everyone else since

    def withdraw(self, seq: Sequence) -> None:
        """A waiting sequence is given up: it leaves the queue and, if it was swapped out, the swap space."""
        self.waiting.remove(seq)
        if seq.is_swapped:
            self.allocator.drop_swapped(seq)

    def stop_computing(self, seq: Sequence) -> None:
        """A running sequence is given up: nothing of it is computed from here on; slot and cache are still held."""
        if seq.joined_clock >= 0:
            self.cohort.leave(seq)
        else:
            self.other_tokens -= seq.num_computed_tokens

    def _next(self) -> Sequence:
        seq = self.waiting.pop()
        self.num_running += 1
        self._num_admissions += 1
        seq.admission = self._num_admissions
        return seq
