"""What goes into the reference engine (``Settings``) and what comes out (``Seq`` per attempt, ``Step`` per step)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from simserve.request import Batch, Chunk, Request

NEVER = -1


class Speculation(NamedTuple):
    """Drafts of a pass: how likely each is right where those before it were, and the seed of who is."""

    acceptance: tuple[float, ...]
    seed: int = 0

    @property
    def num_drafts(self) -> int:
        return len(self.acceptance)


@dataclass(frozen=True)
class Settings:
    """What the engine is told, tokens and blocks; the names are those of a scenario's ``engine`` section."""

    policy: Literal["static", "continuous", "chunked", "transformers"]
    allocator: Literal["paged", "contiguous", "none"]
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int
    block_size: int = 1
    queue_order: Literal["fcfs", "priority", "shortest_job_oracle"] = "fcfs"
    max_wait_s: float | None = None  # static
    watermark: float = 0.0  # paged
    null_blocks: int = 0
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_space_bytes: int = 0
    swap_bytes_per_s: float = 1e9
    kv_bytes_per_token: int = 1024
    prefix_caching: bool = False
    nameless_first: bool = False  # of the free blocks those that nobody could hit are taken before all others
    reserve: Literal["max_model_len", "max_tokens", "oracle"] = "max_tokens"  # contiguous
    safety_margin: float = 0.15  # transformers: the share of free blocks below which no prefill joins others
    speculation: Speculation | None = None
    max_queued_requests: int | None = None
    retry_after_ns: int = 0

    @property
    def usable_blocks(self) -> int:
        return self.num_blocks - self.null_blocks

    @property
    def watermark_blocks(self) -> int:
        return int(self.watermark * self.usable_blocks)

    def declared(self, r: Request) -> int:
        """Prompt and answer at most, as the client declared it."""
        return min(r.num_prompt_tokens + r.max_output_tokens, self.max_model_len)

    def reservation(self, r: Request) -> int:
        """Cells that the contiguous cache sets aside for a request."""
        sizes = {"max_model_len": self.max_model_len, "max_tokens": self.declared(r), "oracle": r.num_total_tokens}
        return sizes[self.reserve]

    def why_never(self, r: Request) -> str:
        """The reason why this request can never be served, or an empty string."""
        most = r.num_prompt_tokens
        if r.num_total_tokens > self.max_model_len:
            return "max_model_len"
        if self.allocator == "none":  # all but the last token are computed in the last step, if it comes to that
            most = self.declared(r) - 1
        elif self.allocator == "contiguous":
            if self.reservation(r) > self.num_blocks * self.block_size:
                return "cache"
        else:
            tokens = self.declared(r) if self.policy == "static" else r.num_total_tokens
            if self.speculation is not None:  # the drafts of the last pass, as far as an answer may reach
                tokens = min(tokens + self.speculation.num_drafts, self.declared(r))
            if math.ceil(tokens / self.block_size) + self.watermark_blocks > self.usable_blocks:
                return "cache"
            if self.policy == "continuous":  # all but the last token may have to be recomputed in one step
                most = r.num_total_tokens - 1
        is_whole = self.policy in ("static", "continuous")  # computed in one step, without chunks
        return "max_num_batched_tokens" if is_whole and most > self.max_num_batched_tokens else ""


@dataclass(eq=False)
class Seq:
    """One attempt at a request and all that has happened to it."""

    request: Request
    arrival_ns: int
    left_ns: int = NEVER  # when its client gave it up
    computed: int = 0
    generated: int = 0
    prefilling: bool = True
    swapped_blocks: int = 0
    first_scheduled_ns: int = NEVER
    token_ns: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_passes: int = 0
    num_accepted_tokens: int = 0
    num_rejected_tokens: int = 0  # computed in passes and rolled back
    lookups: list[tuple[int, int]] = field(default_factory=list)  # at each admission: tokens known, tokens hit

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def departed(self) -> bool:
        return self.left_ns != NEVER

    @property
    def num_prefix_hit_tokens(self) -> int:
        return sum(hit for _, hit in self.lookups)

    @property
    def known(self) -> int:
        return self.request.num_prompt_tokens + self.generated

    @property
    def uncomputed(self) -> int:
        return self.known - self.computed

    @property
    def is_done(self) -> bool:
        return self.generated == self.request.num_output_tokens


class Work(NamedTuple):
    """What one sequence computes in a step: ``num_new`` of its own tokens over ``num_context`` computed ones."""

    seq_id: int
    num_new: int
    num_context: int
    is_prefill: bool


@dataclass(frozen=True)
class Step:
    """One step as it was run. ``batch`` is its shape; counts and cache figures are those right after the decision.

    ``free`` counts blocks (contiguous: cells), of which ``cached_free`` could be hit; ``used_tokens`` are filled,
    ``reserved_tokens`` held by someone, and ``external_tokens`` free in holes too small for the head of the queue.
    ``tables`` has the numbers of the blocks that each sequence holds, ``queue`` those of the free ones, in the order in
    which they would be taken, and ``taken`` those that this step took out of it for something new.
    """

    begin_ns: int
    end_ns: int
    works: tuple[Work, ...]
    batch: Batch
    admitted: tuple[int, ...]
    preempted: tuple[int, ...]
    is_repeat: bool
    free: int
    used_tokens: int
    reserved_tokens: int
    external_tokens: int
    num_waiting: int
    num_running: int  # those whom somebody still wants
    cached_free: int = 0
    num_evictions: int = 0  # so far
    tables: dict[int, tuple[int, ...]] = field(default_factory=dict)
    queue: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()

    @property
    def num_prefill_tokens(self) -> int:
        return sum(chunk.num_new_tokens for chunk in self.batch.chunks)

    @property
    def num_decodes(self) -> int:
        return self.batch.num_decodes

    @property
    def num_seqs(self) -> int:
        return len(self.batch.chunks) + self.batch.num_decodes


class StepEnd(NamedTuple):
    """What stands when a step ends, before anything that it finished is given back."""

    used_tokens: int
    reserved_tokens: int
    cached_free: int
    num_waiting: int
    num_emitted: int


class Plan(NamedTuple):
    """A scheduling decision before the clock has run it."""

    seqs: tuple[Seq, ...]
    works: tuple[Work, ...]  # of the same sequences
    batch: Batch
    admitted: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        work: list[tuple[Seq, int]],
        admitted: list[Seq],
        preempted: list[Seq],
        moved: int,
        tokens_per_decode: int = 1,
    ) -> Plan | None:
        """Who computes how many tokens of his own; nothing if nobody does."""
        if not work:
            return None
        works = tuple(Work(seq.id, new, seq.computed, seq.prefilling) for seq, new in work)
        chunks = tuple(Chunk(w.num_new, w.num_context) for w in works if w.is_prefill)
        decodes = [w.num_context for w in works if not w.is_prefill]
        batch = Batch(
            chunks,
            len(decodes),
            sum(decodes),
            transfer_bytes=moved,
            max_decode_context=max(decodes, default=0),
            tokens_per_decode=tokens_per_decode,
        )
        changes = tuple(seq.id for seq in admitted), tuple(seq.id for seq in preempted)
        return cls(tuple(seq for seq, _ in work), works, batch, *changes)
