"""What was asked (``Request``), what has happened to it (``Sequence``), and one step's decision (``Batch``).

Units: tokens, bytes, integer nanoseconds (``_ns``).
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntColumn = npt.NDArray[np.int64]


class Chain(NamedTuple):
    """What a prompt holds, as far as the trace tells: an id per content block of ``block_tokens`` tokens, of which the
    last may be ``short_by`` tokens short.

    Two chains have the same id at the same index if and only if their tokens are equal from the start up to the end of
    that block (nodes of a radix tree, numbered from 0). ``ids`` may be a ``range`` with ``block_tokens`` 1: token k is
    node ``start + k``. Ranges that start at the same number begin alike, all others have no number in common. The first
    tokens of a range may be another's: ``lead`` says whose, and the range's own numbers stand for the rest.
    """

    ids: abc.Sequence[int]
    block_tokens: int
    short_by: int = 0
    lead: range = range(0)

    @property
    def num_tokens(self) -> int:
        """Tokens that the chain tells of."""
        return len(self.ids) * self.block_tokens - self.short_by


@dataclass(frozen=True)
class Content:
    """The chains of a workload in columns: request i has ``ids[offsets[i]:offsets[i + 1]]``, and the last of them is
    ``short_by[i]`` tokens short (null: none is)."""

    ids: IntColumn
    offsets: IntColumn
    block_tokens: int
    short_by: IntColumn | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Chain:
        begin, end = int(self.offsets[i]), int(self.offsets[i + 1])
        return Chain(self.ids.data[begin:end], self.block_tokens, 0 if self.short_by is None else int(self.short_by[i]))


@dataclass(frozen=True)
class Ranges:
    """Chains that are ranges of tokens, in columns: request i is known for ``num_tokens[i]`` tokens, numbered from
    ``first[i]`` on. What begins alike begins at the same number, and what does not has no number in common. The first
    ``lead_tokens[i]`` of them are those numbered from ``lead_first[i]`` on instead (null: none are)."""

    first: IntColumn
    num_tokens: IntColumn
    lead_first: IntColumn | None = None
    lead_tokens: IntColumn | None = None

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, i: int) -> Chain:
        first = int(self.first[i])
        ids = range(first, first + int(self.num_tokens[i]))
        if self.lead_first is None or self.lead_tokens is None:
            return Chain(ids, 1)
        lead = int(self.lead_first[i])
        return Chain(ids, 1, lead=range(lead, lead + int(self.lead_tokens[i])))


class Tenant(NamedTuple):
    """One of those who share an engine, and what they were promised, in seconds; null is not asked for here."""

    name: str
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True)
class Tenants:
    """Whose requests a workload's are: request i is of ``each[of[i]]``."""

    each: tuple[Tenant, ...]
    of: IntColumn


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its client sent it. ``num_output_tokens`` is the true length, which only the engine may read
    (and policies or reservations with *oracle* in their name); ``max_output_tokens`` is what the client declared."""

    id: int
    arrival_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    max_output_tokens: int
    priority: int = 0
    content: Chain | None = field(default=None, compare=False)

    @property
    def num_total_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


@dataclass(frozen=True)
class RequestTable:
    """A workload in columns, sorted by arrival; row i is the request with id i. One million rows take 40 MB.

    ``content`` says which prompts begin alike, where the trace tells, ``tenants`` whose the requests are, where there
    are several, and ``session`` which of them are one conversation (-1: a request of its own), where there are any.
    """

    arrival_ns: IntColumn
    num_prompt_tokens: IntColumn
    num_output_tokens: IntColumn
    max_output_tokens: IntColumn
    priority: IntColumn
    content: Content | Ranges | None = None
    tenants: Tenants | None = None
    session: IntColumn | None = None

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def __getitem__(self, i: int) -> Request:
        return Request(
            i,
            int(self.arrival_ns[i]),
            int(self.num_prompt_tokens[i]),
            int(self.num_output_tokens[i]),
            int(self.max_output_tokens[i]),
            int(self.priority[i]),
            None if self.content is None else self.content[i],
        )


class LookUp(NamedTuple):
    """What a sequence looked for in a prefix cache when it was first admitted, in tokens: all that it knew; of these,
    what was found; what had been there and was evicted, from where it found no more; and what an infinite cache in
    which prompts that were looked up before, and their answers, are there at once would have found (found and evicted
    among it). Whole blocks from the start, never the last token, nor an answer's last, which nobody computes."""

    num_tokens: int
    num_found_tokens: int
    num_evicted_tokens: int
    num_bound_tokens: int


@dataclass(slots=True, eq=False)
class Sequence:
    """The progress of one admitted request.

    Known tokens are the prompt and what was generated; a step that computes the last known one emits the next. While a
    sequence decodes, its counters stand as they were when it joined the cohort (``scheduling.cohort``), which settles
    them when it leaves: that keeps a step free of work per sequence.
    """

    request: Request
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_prefix_hit_tokens: int = 0  # found in the cache at admissions instead of computed
    is_swapped: bool = False
    has_left: bool = False  # its client gave it up, and the engine has yet to let go of it
    arrival_ns: int = -1  # of this attempt; by default the request's own
    joined_clock: int = -1  # of the cohort, -1 outside it
    admission: int = -1  # counts admissions of the engine: the last admitted is preempted first
    look_up: LookUp | None = None  # of the first admission, where blocks are found again

    def __post_init__(self) -> None:
        if self.arrival_ns < 0:
            self.arrival_ns = self.request.arrival_ns

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def num_known_tokens(self) -> int:
        return self.request.num_prompt_tokens + self.num_generated_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_known_tokens - self.num_computed_tokens


class Chunk(NamedTuple):
    """One prefill as the model sees it: ``num_new_tokens`` rows that attend to ``num_context_tokens`` cached ones."""

    num_new_tokens: int
    num_context_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One step's decision. A policy returns the *same object* while its decision stands, and a new one when it changes.

    Shape, all that a step-time model reads (at the first step of the decision; in later ones each chunk's context has
    grown by its own new tokens per step and each decode's by one):

    - ``chunks``: prefills, padding included where the policy pads;
    - ``num_decodes`` sequences that compute one token each, over ``decode_context_tokens`` cached tokens in all, the
      longest over ``max_decode_context``, which stays the longest as all grow alike (0, all alike, unless the model has
      ``needs_max_decode_context = True``: keeping it costs 3 % of the engine's time);
    - ``tokens_per_decode``: with drafts to verify (``speculation``) each decode computes γ + 1 tokens over its cached
      ones. Such a batch is never repeated, and ``speculation.step_time`` shows it to models as decodes and as chunks;
    - ``num_extra_rows``: rows that need the output head beyond one per sequence, where chunks are verified;
    - ``recomputes``: without a cache, ``chunks`` are all rows, each a whole sequence over an empty context at every
      step, and in later steps each has grown by ONE token per step. ``num_decodes`` is 0. ``Stretch`` asks a model step
      by step, with the chunks as that step has them (``at_step``), so a model need not know of growth.

    Work: ``prefills`` pairs each sequence that prefills with the tokens of its own that a step computes; ``admitted``
    and ``preempted`` are what the decision changed, ``paused`` those who decoded and miss steps from here on, with
    their place and cache kept, and ``resumed`` those who decode again; ``transfer_bytes`` were swapped before the
    first step.
    """

    chunks: tuple[Chunk, ...] = ()
    num_decodes: int = 0
    decode_context_tokens: int = 0
    prefills: tuple[tuple[Sequence, int], ...] = ()
    admitted: tuple[Sequence, ...] = ()
    preempted: tuple[Sequence, ...] = ()
    transfer_bytes: int = 0
    max_decode_context: int = 0
    paused: tuple[Sequence, ...] = ()
    resumed: tuple[Sequence, ...] = ()
    recomputes: bool = False
    tokens_per_decode: int = 1
    num_extra_rows: int = 0

    def at_step(self, step: int) -> Batch:
        """The shape of step number ``step`` (from 0) of a decision that recomputes, as a decision of its own."""
        return Batch(tuple(Chunk(new + step, context) for new, context in self.chunks), recomputes=True)

    @property
    def num_batched_tokens(self) -> int:
        """Tokens that one step pushes through the model."""
        return sum(chunk.num_new_tokens for chunk in self.chunks) + self.num_decodes * self.tokens_per_decode

    def num_attention_pairs(self, begin: int, num_steps: int) -> int:
        """(query, key) pairs of steps ``begin`` to ``begin + num_steps`` of the decision: each new token attends to
        what its sequence has cached, to its elders in the step and to itself."""
        steps = num_steps * begin + num_steps * (num_steps - 1) // 2  # Σ k over the steps k
        per_decode = self.tokens_per_decode
        pairs = per_decode * (num_steps * self.decode_context_tokens + self.num_decodes * steps)
        pairs += num_steps * self.num_decodes * (per_decode * (per_decode + 1) // 2)
        if self.recomputes:  # Σ (n + k)(n + k + 1) / 2
            squares = sum(k * k for k in range(begin, begin + num_steps))
            grown = (squares + steps) // 2
            return pairs + sum(num_steps * (new * (new + 1) // 2) + new * steps + grown for new, _ in self.chunks)
        for new, context in self.chunks:
            pairs += new * (num_steps * context + new * steps) + num_steps * (new * (new + 1) // 2)
        return pairs

    @property
    def num_seqs(self) -> int:
        """Rows of the batch: slots that compute, finished members of a static batch included."""
        return len(self.chunks) + self.num_decodes


class WaitUntil(NamedTuple):
    """A policy's answer when it chooses to idle: wake it at this time even if nothing arrives."""

    time_ns: int
