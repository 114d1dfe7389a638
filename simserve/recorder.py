"""Writes down what the engine does, in columns. One method per event; no decisions here."""

from __future__ import annotations

import heapq
from operator import attrgetter

from simserve.records import FINISHED, NEVER, REJECTED, RUNNING, Records, Span, SpanRecords
from simserve.request import Batch, Request, Sequence
from simserve.scheduling import Pool
from simserve.step_time.stretch import Stretch
from simserve.token_gaps import TokenGaps

_span_values = attrgetter(*SpanRecords.COLUMNS)


class Recorder:
    """Fills a ``Records`` while an engine runs over ``pool``."""

    def __init__(self, records: Records, pool: Pool) -> None:
        self.records = records
        self.num_ended = 0
        self._pool = pool
        self._gaps = TokenGaps(records)
        self._free_slots = list(range(pool.limits.max_num_seqs))
        self._occupied: dict[int, list[int]] = {}  # request id -> open row of the occupancy table
        self._span: Span | None = None
        self._batch = Batch()
        self._stretch: Stretch | None = None
        self._anchor_ns = 0
        self._num_present = 0  # waiting + running
        self._present_since_ns = 0

    def arrived(self, request: Request) -> None:
        """The request is queued."""
        self._count_present(request.arrival_ns, +1)

    def rejected(self, request: Request, reason: str) -> None:
        """The request can never be served."""
        requests = self.records.requests
        requests.status[request.id] = REJECTED
        requests.end_ns[request.id] = request.arrival_ns
        requests.reject_reason[request.id] = reason
        self.num_ended += 1

    def admitted(self, seq: Sequence, now_ns: int) -> None:
        """The sequence got a slot, for the first time or again."""
        requests = self.records.requests
        if requests.first_scheduled_ns[seq.id] == NEVER:
            requests.first_scheduled_ns[seq.id] = now_ns
            requests.status[seq.id] = RUNNING
        self._occupied[seq.id] = [seq.id, heapq.heappop(self._free_slots), now_ns, NEVER, NEVER, NEVER]
        if seq.joined_clock >= 0:  # swapped in: it decodes at once
            self._gaps.resume(seq)
            self._occupied[seq.id][3] = now_ns

    def preempted(self, seq: Sequence, now_ns: int) -> None:
        """The sequence lost its slot and cache and waits again."""
        self._gaps.preempt(seq)
        self._release_slot(seq, now_ns)
        self.records.num_preemptions += 1

    def emitted_by_prefill(self, seq: Sequence, now_ns: int) -> None:
        """A complete prefill gave a token, the first or the next after a preemption; the sequence decodes from here."""
        requests = self.records.requests
        if requests.first_token_ns[seq.id] == NEVER:
            requests.first_token_ns[seq.id] = now_ns
        self._gaps.join(seq, now_ns)
        self._occupied[seq.id][3] = now_ns
        assert self._span is not None
        self._span.num_emitted_tokens += 1

    def last_token(self, seq: Sequence, now_ns: int) -> None:
        """The sequence's last token is computed."""
        self.records.requests.last_token_ns[seq.id] = now_ns
        self._occupied[seq.id][4] = now_ns
        self._gaps.leave(seq)

    def delivered(self, seq: Sequence, now_ns: int) -> None:
        """The client has its answer, and the slot is free."""
        requests, i = self.records.requests, seq.id
        requests.status[i] = FINISHED
        requests.end_ns[i] = now_ns
        requests.num_emitted_tokens[i] = seq.num_generated_tokens
        requests.num_preemptions[i] = seq.num_preemptions
        requests.num_recomputed_tokens[i] = seq.num_recomputed_tokens
        self.records.num_recomputed_tokens += seq.num_recomputed_tokens
        self._release_slot(seq, now_ns)
        self._count_present(now_ns, -1)
        self.num_ended += 1

    def begin_span(self, batch: Batch, stretch: Stretch, now_ns: int) -> None:
        """A new decision begins."""
        self._batch, self._stretch, self._anchor_ns = batch, stretch, now_ns
        self.records.swapped_bytes += batch.transfer_bytes
        self.continue_span(now_ns)

    def continue_span(self, now_ns: int) -> None:
        """Open a row for the standing decision, if none is open."""
        if self._span is None:
            batch = self._batch
            self._span = self._open(now_ns, batch)

    def advance(self, begin: int, num_steps: int, num_live: int) -> None:
        """Steps ``begin`` to ``begin + num_steps`` of the decision passed, ``num_live`` sequences decoding."""
        batch, span, records, stretch = self._batch, self._span, self.records, self._stretch
        assert span is not None and stretch is not None
        own_tokens = sum(tokens for _, tokens in batch.prefills)
        num_emitting = num_live if batch.num_decodes else 0  # a prefill-only step stalls those who decode
        span.num_steps += num_steps
        records.num_steps += num_steps
        records.num_computed_tokens += num_steps * (own_tokens + num_emitting)
        records.num_padding_tokens += num_steps * (span.num_prefill_tokens - own_tokens)
        if batch.num_decodes:
            num_held = num_steps * (batch.num_decodes - num_live)
            span.num_emitted_tokens += num_steps * num_live
            span.num_finished_held += num_held
            records.num_padding_tokens += num_held
            self._gaps.decode(stretch, self._anchor_ns, begin, begin + num_steps)
        for ramp, first, stop in stretch.pieces(begin, begin + num_steps):
            if ramp.extrapolated:
                span.num_extrapolated_steps += stop - first
        span.num_waiting_end = len(self._pool.waiting)
        span.kv_used_end = used = self._pool.used_tokens
        span.kv_reserved_unused_end, span.kv_internal_end = self._pool.allocator.waste(used, 0)

    def end_span(self, now_ns: int) -> None:
        """The open row, if any, ends here, with the values of the last ``advance`` (before anything was released)."""
        if self._span is not None:
            self._span.end_ns = now_ns
            self.records.spans.rows.append(_span_values(self._span))
            self._span = None

    def idle(self, begin_ns: int, end_ns: int) -> None:
        """Nothing runs from ``begin_ns`` to ``end_ns``."""
        self.end_span(begin_ns)
        span = self._open(begin_ns, Batch())
        span.end_ns = end_ns
        self.records.spans.rows.append(_span_values(span))

    def _open(self, now_ns: int, batch: Batch) -> Span:
        pool = self._pool
        used, num_waiting = pool.used_tokens, len(pool.waiting)
        coming = sum(tokens for _, tokens in batch.prefills) + (len(pool.cohort) if batch.num_decodes else 0)
        reserved, internal = pool.allocator.waste(used, coming)
        num_prefill_tokens = sum(chunk.num_new_tokens for chunk in batch.chunks)
        span = Span(now_ns, now_ns, 0, batch.num_seqs, batch.num_decodes, num_prefill_tokens)
        span.num_running_begin = pool.num_running
        span.num_waiting_begin = span.num_waiting_end = num_waiting
        span.kv_used_begin = span.kv_used_end = used
        span.kv_reserved_unused_begin = span.kv_reserved_unused_end = reserved
        span.kv_internal_begin = span.kv_internal_end = internal
        span.kv_external = pool.allocator.unusable_tokens(pool.waiting.head().request if num_waiting else None)
        return span

    def _release_slot(self, seq: Sequence, now_ns: int) -> None:
        row = self._occupied.pop(seq.id)
        row[5] = now_ns
        heapq.heappush(self._free_slots, row[1])
        self.records.occupancy.rows.append(row)

    def _count_present(self, now_ns: int, change: int) -> None:
        """∫ (waiting + running) dt, in integers (INV-8)."""
        self.records.in_system_ns += self._num_present * (now_ns - self._present_since_ns)
        self._num_present += change
        self._present_since_ns = now_ns
