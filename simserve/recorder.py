"""Writes down what the engine does, in columns. One method per event; no decisions here."""

from __future__ import annotations

import heapq
from operator import attrgetter

from simserve.clients.clients import Arrival, Departure
from simserve.records import (
    BACKING_OFF,
    CANCELLED,
    FINISHED,
    NEVER,
    REJECTED,
    RUNNING,
    TIMED_OUT,
    WAITING,
    Records,
    RequestCells,
    Span,
    SpanRecords,
)
from simserve.request import Batch, Sequence
from simserve.scheduling import Pool
from simserve.step_time.stretch import Stretch
from simserve.token_gaps import TokenGaps

_span_values = attrgetter(*SpanRecords.COLUMNS)


class Recorder:
    """Fills a ``Records`` while an engine runs over ``pool``."""

    def __init__(self, records: Records, pool: Pool) -> None:
        self.records = records
        self.num_ended = 0
        self._cells = RequestCells(records.requests)
        self._pool = pool
        self._gaps = TokenGaps(records)
        self._free_slots = list(range(pool.limits.max_num_seqs))
        self._occupied: dict[int, list[int]] = {}  # request id -> open row of the occupancy table
        self._span: Span | None = None
        self._batch = Batch()
        self._stretch: Stretch | None = None
        self._anchor_ns = 0
        self._left_ns: dict[int, int] = {}  # request id -> since when its client backs off
        self._retried_ns: dict[int, int] = {}  # request id -> when its latest attempt was sent, if it had several
        self._num_finished = 0
        self._num_present = 0  # waiting + running
        self._present_since_ns = 0

    @property
    def num_arrived_and_finished(self) -> tuple[int, int]:
        """Requests that were sent, and those that were answered."""
        return self.records.num_arrived, self._num_finished

    def sent(self, arrival: Arrival) -> None:
        """An attempt reaches the server, whatever the server does with it."""
        requests, i = self._cells, arrival.request.id
        requests.num_attempts[i] = arrival.attempt
        if arrival.attempt == 1:
            requests.arrival_ns[i] = arrival.time_ns
            self.records.num_arrived += 1
        else:
            self._retried_ns[i] = arrival.time_ns
            requests.away_ns[i] += arrival.time_ns - self._left_ns.pop(i)
            requests.num_abandoned_tokens[i] += requests.num_emitted_tokens[i]
            requests.num_emitted_tokens[i] = requests.num_preemptions[i] = requests.num_recomputed_tokens[i] = 0
            requests.num_prefix_hit_tokens[i] = 0
            requests.first_scheduled_ns[i] = requests.first_token_ns[i] = requests.last_token_ns[i] = NEVER

    def queued(self, seq: Sequence) -> None:
        """The attempt waits."""
        self._cells.status[seq.id] = WAITING
        self._count_present(seq.arrival_ns, +1)

    def turned_away(self, arrival: Arrival, comes_again: bool) -> None:
        """The attempt is answered 429."""
        self.records.num_turned_away += 1
        if comes_again:
            self._cells.status[arrival.request.id] = BACKING_OFF
            self._left_ns[arrival.request.id] = arrival.time_ns

    def rejected(self, arrival: Arrival, reason: str) -> None:
        """The request is not served, now or ever."""
        self.records.requests.reject_reason[arrival.request.id] = reason
        self._end(arrival.request.id, REJECTED, arrival.time_ns)

    def departed(self, departure: Departure, comes_again: bool) -> None:
        """The client gave the attempt up, or left while it was backing off."""
        requests, i, now_ns = self._cells, departure.request.id, departure.time_ns
        self.records.num_timed_out_attempts += not departure.cancelled
        if departure.seq is not None:
            self._count_present(now_ns, -1)
        else:
            requests.away_ns[i] += now_ns - self._left_ns.pop(i)
        if comes_again:
            requests.status[i] = BACKING_OFF
            self._left_ns[i] = now_ns
        else:
            self._end(i, CANCELLED if departure.cancelled else TIMED_OUT, now_ns)

    def abandoned(self, seq: Sequence, now_ns: int) -> None:
        """What was computed for a client that has left is settled; a slot that it keeps (in a static batch) idles."""
        if seq.num_generated_tokens < seq.request.num_output_tokens:
            self._gaps.drop(seq)
        self._count_tokens(seq)
        slot = self._occupied.get(seq.id)
        if slot is not None and slot[4] == NEVER and slot[2] >= seq.arrival_ns:  # else it is an earlier attempt's,
            slot[4] = now_ns  # which computes to the end of its step

    def admitted(self, seq: Sequence, now_ns: int) -> None:
        """The sequence got a slot, for the first time or again."""
        requests = self._cells
        if requests.first_scheduled_ns[seq.id] == NEVER:
            requests.first_scheduled_ns[seq.id] = now_ns
            requests.status[seq.id] = RUNNING
        self._occupied[seq.id] = [seq.id, heapq.heappop(self._free_slots), now_ns, NEVER, NEVER, NEVER]
        if seq.joined_clock >= 0:  # swapped in: it decodes at once
            self._gaps.resume(seq)
            self._occupied[seq.id][3] = now_ns
        else:
            self._count_hits(seq, now_ns)

    def preempted(self, seq: Sequence, now_ns: int) -> None:
        """The sequence lost its slot and cache and waits again."""
        self._gaps.preempt(seq)
        self.released(seq, now_ns)
        self.records.num_preemptions += 1

    def paused(self, seq: Sequence) -> None:
        """The sequence misses steps and keeps slot and cache: its gap stays open."""
        self._gaps.preempt(seq)

    def resumed(self, seq: Sequence) -> None:
        """The sequence decodes again."""
        self._gaps.resume(seq)

    def emitted_by_prefill(self, seq: Sequence, now_ns: int) -> None:
        """A complete prefill gave a token, the first or the next after a preemption; the sequence decodes from here."""
        requests = self._cells
        if requests.first_token_ns[seq.id] == NEVER and not seq.has_left:
            requests.first_token_ns[seq.id] = now_ns
        self._gaps.join(seq, now_ns)
        self._occupied[seq.id][3] = now_ns
        assert self._span is not None
        self._span.num_emitted_tokens += 1

    def last_token(self, seq: Sequence, now_ns: int) -> None:
        """The sequence's last token is computed."""
        if not seq.has_left:
            self._cells.last_token_ns[seq.id] = now_ns
        self._occupied[seq.id][4] = now_ns
        self._gaps.leave(seq)

    def delivered(self, seq: Sequence, now_ns: int) -> None:
        """The client has its answer."""
        self._count_tokens(seq)
        self._count_present(now_ns, -1)
        self._num_finished += 1
        self._end(seq.id, FINISHED, now_ns)

    def released(self, seq: Sequence, now_ns: int) -> None:
        """The slot is free."""
        row = self._occupied.pop(seq.id)
        row[5] = now_ns
        heapq.heappush(self._free_slots, row[1])
        self.records.occupancy.rows.append(row)

    def stop(self, now_ns: int) -> None:
        """The run ends here, whoever is still waiting or running."""
        self.end_span(now_ns)
        self._count_present(now_ns, 0)
        for i, left_ns in self._left_ns.items():
            self._cells.away_ns[i] += now_ns - left_ns
        self.records.stopped_ns = now_ns

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
        if batch.recomputes:
            self._advance_recomputing(begin, num_steps, num_live)
        else:
            records.num_computed_tokens += num_steps * (own_tokens + num_emitting)
            records.num_padding_tokens += num_steps * (span.num_prefill_tokens - own_tokens)
        num_rows = batch.num_decodes
        if batch.chunks or batch.tokens_per_decode > 1:
            records.num_attention_pairs += batch.num_attention_pairs(begin, num_steps)
        else:  # the same for plain decodes, which most steps are
            decoded = num_steps * (batch.decode_context_tokens + num_rows * begin)
            records.num_attention_pairs += decoded + num_rows * (num_steps * (num_steps + 1) // 2)
        if num_rows:
            num_held = num_steps * (num_rows - num_live)
            span.num_emitted_tokens += num_steps * num_live
            span.num_finished_held += num_held
            records.num_padding_tokens += num_held
            self._gaps.decode(stretch, self._anchor_ns, begin, begin + num_steps)
        for ramp, first, stop in stretch.pieces(begin, begin + num_steps):
            if ramp.extrapolated:
                span.num_extrapolated_steps += stop - first
        span.num_waiting_end = len(self._pool.waiting)
        span.kv_used_end = used = self._pool.used_tokens
        allocator = self._pool.allocator
        span.kv_reserved_unused_end, span.kv_internal_end = allocator.waste(used, 0)
        span.kv_cached_free_end = allocator.cached_free_tokens

    def _advance_recomputing(self, begin: int, num_steps: int, num_live: int) -> None:
        """The same for a decision without a cache: whoever has a token computes all that it knows, and emits."""
        batch, span, records, stretch = self._batch, self._span, self.records, self._stretch
        assert span is not None and stretch is not None
        num_rows, grown = len(batch.chunks), num_steps * (num_steps - 1) // 2
        # What the last of these steps computed, new sequences included; each one before it a token less per sequence.
        own_tokens = num_steps * self._pool.cohort.context_tokens - num_live * grown
        pushed = num_steps * (batch.num_batched_tokens + num_rows * begin) + num_rows * grown
        records.num_computed_tokens += own_tokens
        records.num_padding_tokens += pushed - own_tokens
        if span.num_steps == num_steps:  # they begin the row
            span.num_prefill_tokens += num_rows * begin
        span.num_finished_held += num_steps * (num_rows - len(batch.prefills) - num_live)
        span.num_emitted_tokens += num_steps * num_live
        if num_live:
            self._gaps.decode(stretch, self._anchor_ns, begin, begin + num_steps)

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
        coming = sum(tokens for _, tokens in batch.prefills) + (pool.cohort.coming_tokens if batch.num_decodes else 0)
        reserved, internal = pool.allocator.waste(used, coming)
        num_prefill_tokens = sum(chunk.num_new_tokens for chunk in batch.chunks)
        span = Span(now_ns, now_ns, 0, batch.num_seqs, batch.num_decodes, num_prefill_tokens)
        span.num_running_begin = pool.num_running
        span.num_waiting_begin = span.num_waiting_end = num_waiting
        span.kv_used_begin = span.kv_used_end = used
        span.kv_reserved_unused_begin = span.kv_reserved_unused_end = reserved
        span.kv_internal_begin = span.kv_internal_end = internal
        span.kv_cached_free_begin = span.kv_cached_free_end = pool.allocator.cached_free_tokens
        span.kv_external = pool.allocator.unusable_tokens(pool.waiting.head().request if num_waiting else None)
        return span

    def _end(self, request_id: int, status: int, now_ns: int) -> None:
        """It is over for the client."""
        self._cells.status[request_id] = status
        self._cells.end_ns[request_id] = now_ns
        self.num_ended += 1

    def _count_tokens(self, seq: Sequence) -> None:
        """What an attempt computed and emitted, once it is over."""
        requests, i = self._cells, seq.id
        num_computed = seq.num_computed_tokens + seq.num_recomputed_tokens - seq.num_prefix_hit_tokens
        requests.num_computed_tokens[i] += num_computed
        self.records.num_recomputed_tokens += seq.num_recomputed_tokens
        if seq.arrival_ns != self._retried_ns.get(i, seq.arrival_ns):  # let go of after the next attempt was sent
            requests.num_abandoned_tokens[i] += seq.num_generated_tokens
            return
        requests.num_emitted_tokens[i] = seq.num_generated_tokens
        requests.num_preemptions[i] = seq.num_preemptions
        requests.num_recomputed_tokens[i] = seq.num_recomputed_tokens
        requests.num_prefix_hit_tokens[i] = seq.num_prefix_hit_tokens

    def _count_hits(self, seq: Sequence, now_ns: int) -> None:
        """What it was admitted with was found in the cache. As in vLLM's metric, the rate leaves sequences out
        that come back from a preemption: they find what they left themselves."""
        records, found = self.records, seq.num_computed_tokens
        records.num_prefix_hit_tokens += found
        if seq.num_preemptions == 0:
            records.num_looked_up_tokens += seq.num_known_tokens
            records.num_found_tokens += found
            if seq.look_up is not None:
                records.look_ups.rows.append((now_ns, seq.id, *seq.look_up))

    def _count_present(self, now_ns: int, change: int) -> None:
        """∫ (waiting + running) dt, in integers (INV-8)."""
        self.records.in_system_ns += self._num_present * (now_ns - self._present_since_ns)
        self._num_present += change
        self._present_since_ns = now_ns
