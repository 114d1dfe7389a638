"""The slow, obvious engine that the real one must agree with, request by request and step by step.

No event queue, no fast-forward, no aggregates: one step at a time, one loop over the sequences, every block counted
afresh; its clients are in ``reference_clients``. It shares three things with the real engine, on purpose, which have
tests of their own: the shape of a ``Batch``, the clock rule of ``Stretch`` (step k of an unchanged decision ends at
anchor + round(1e9 · span)), and the delays of a ``RetryPolicy``.
"""

from __future__ import annotations

from simserve.clients.plan import OPEN_LOOP, ClientPlan
from simserve.request import RequestTable
from simserve.step_time.stretch import StepTime, Stretch
from tests.reference_blocks import BlockList
from tests.reference_cache import CellRow, NoRow
from tests.reference_clients import Ask, ReferenceClients
from tests.reference_slots import SlotRows
from tests.reference_types import NEVER, Plan, Seq, Settings, Step, StepEnd, Work


class Reference:
    """``Reference(table, settings, step_time, clients).run()``; then read ``asks``, ``seqs`` and ``steps``."""

    decode_tokens = 1  # of a sequence in a step

    def __init__(
        self, table: RequestTable, settings: Settings, step_time: StepTime, clients: ClientPlan = OPEN_LOOP
    ) -> None:
        self.s = settings
        self.step_time = step_time
        self.clients = ReferenceClients(table, clients, settings.retry_after_ns)
        self.waiting: list[Seq] = []
        self.running: list[Seq] = []  # in the order of their (last) admission
        self.steps: list[Step] = []
        self.ends: list[StepEnd] = []  # of the same steps
        self.slots = SlotRows(settings.max_num_seqs)
        self.paged = BlockList(settings)
        self.row = NoRow() if settings.allocator == "none" else CellRow(settings.num_blocks * settings.block_size)
        self.swapped_bytes = 0
        self.first_lookups: list[tuple[int, ...]] = []  # time, request, and what ``BlockList.look_up`` says
        self.now = 0

    # The loop ---------------------------------------------------------------------------------------------------

    def run(self) -> Reference:
        previous: Plan | None = None
        stretch, anchor, k = None, 0, 0
        while True:
            plan = self.decide(previous)
            if plan is None:
                wake = self.next_wake()
                if wake is None:
                    assert not self.waiting and not self.running, "stalled: requests wait and nothing can happen"
                    return self
                self.now, previous, stretch = wake, None, None
                continue
            repeats = stretch is not None and previous is not None and self.same_decision(previous, plan)
            if not repeats:
                lead_s = plan.batch.transfer_bytes / self.s.swap_bytes_per_s
                stretch, anchor, k = Stretch(self.step_time, plan.batch, lead_s), self.now, 0
            assert stretch is not None
            k += 1
            self.record(plan, anchor + stretch.end_ns(k), repeats)
            previous = plan

    def decide(self, previous: Plan | None) -> Plan | None:
        """What the step that ends now leaves behind, what clients do until then, and the next step."""
        self.let_happen(self.now - 1)
        self.complete(previous)
        self.let_happen(self.now)
        self.release_departed()
        self.let_happen(self.now)  # what clients send whose answers came with that
        return self.schedule()

    @property
    def holders(self) -> list[Seq]:
        """Everyone who has room in the cache."""
        return self.running

    @property
    def filled_tokens(self) -> int:
        """What is in the cache."""
        if self.s.allocator == "paged":
            return self.paged.filled_tokens(self.holders)
        return sum(seq.computed for seq in self.holders)

    def same_decision(self, before: Plan, plan: Plan) -> bool:
        if plan.admitted or plan.preempted:
            return False
        shape = [(w.seq_id, w.num_new, w.is_prefill) for w in plan.works]
        return shape == [(w.seq_id, w.num_new, w.is_prefill) for w in before.works]

    def next_wake(self) -> int | None:
        event = self.clients.next_event()
        return None if event is None else event.time_ns

    def record(self, plan: Plan, end_ns: int, repeats: bool) -> None:
        decoding = [seq.id for seq in self.running if not seq.prefilling]
        self.slots.change(plan.preempted, plan.admitted, decoding, self.now)
        external, blocks = 0, {}
        if self.s.allocator == "paged":
            paged = self.paged
            used, free, reserved = self.filled_tokens, paged.free, paged.reserved_tokens
            blocks = {
                "cached_free": paged.cached_free,
                "num_evictions": paged.num_evictions,
                "tables": {i: tuple(block.number for block in table) for i, table in paged.tables.items()},
                "queue": tuple(block.number for block in paged.queue),
                "taken": tuple(paged.taken),
            }
            paged.taken.clear()
        else:
            used, free, reserved = self.filled_tokens, self.row.free, self.row.reserved_tokens
            if self.waiting:
                need = self.s.reservation(self.waiting[0].request)
                external = sum(size for _, size in self.row.holes() if size < need)
        cache = free, used, reserved, external
        counts = len(self.waiting), sum(not seq.departed for seq in self.running)
        decision = plan.works, plan.batch, plan.admitted, plan.preempted, repeats
        self.steps.append(Step(self.now, end_ns, *decision, *cache, *counts, **blocks))
        self.now = end_ns

    # Clients ----------------------------------------------------------------------------------------------------

    @property
    def asks(self) -> list[Ask]:
        return self.clients.asks

    @property
    def seqs(self) -> list[Seq]:
        """Every attempt at every request."""
        return [seq for ask in self.asks for seq in ask.attempts]

    def let_happen(self, until_ns: int) -> None:
        """What clients do up to and at this time."""
        while (event := self.clients.next_event()) is not None and event.time_ns <= until_ns:
            ask = self.asks[event.request_id]
            if event.what == "sends":
                self.receive(ask, event.time_ns)
                continue
            if not ask.is_away:
                self.abandon(ask.attempts[-1], event.time_ns)
            self.clients.give_up(ask, event.what, event.time_ns)

    def receive(self, ask: Ask, now_ns: int) -> None:
        seq, reason, limit = self.clients.send(ask, now_ns), self.s.why_never(ask.request), self.s.max_queued_requests
        if reason:
            self.clients.end(ask, "rejected", now_ns, reason)
        elif limit is not None and len(self.waiting) >= limit:
            self.clients.turn_away(ask, now_ns)
        else:
            self.waiting.append(seq)

    def abandon(self, seq: Seq, now_ns: int) -> None:
        """Its client has left: it is out of the queue at once, or out of the batch when the step has ended."""
        seq.left_ns, seq.swapped_blocks = now_ns, 0
        if seq in self.waiting:
            self.waiting.remove(seq)

    def release_departed(self) -> None:
        departed = [seq for seq in self.running if seq.departed]
        for seq in sorted(departed, key=lambda seq: (seq.left_ns, seq.id)):
            self.leave(seq)

    def queue_key(self, seq: Seq) -> tuple[int, ...]:
        r = seq.request
        keys = {"fcfs": 0, "priority": r.priority, "shortest_job_oracle": r.num_output_tokens}
        return (0 if seq.num_preemptions else 1, keys[self.s.queue_order], seq.arrival_ns, r.id)

    # Ends of steps ----------------------------------------------------------------------------------------------

    def complete(self, plan: Plan | None) -> None:
        """What the step that ends now leaves behind: computed tokens, new tokens, finished requests."""
        if plan is None:
            return
        for seq, work in zip(plan.seqs, plan.works, strict=True):
            self.carry_out(seq, work)
        self.end_step()
        self.deliver()

    def carry_out(self, seq: Seq, work: Work) -> None:
        """What one sequence has from the step."""
        seq.computed += work.num_new
        if seq.uncomputed == 0:
            self.emit(seq)

    def emit(self, seq: Seq) -> None:
        """A token is out."""
        seq.generated += 1
        seq.token_ns.append(self.now)
        if seq.prefilling:
            seq.prefilling = False
            self.slots.decodes(seq.id, self.now)
        if seq.is_done:
            self.slots.idles(seq.id, self.now)

    def end_step(self) -> None:
        """Note what stands at the end of a step, before anybody leaves."""
        paged = self.s.allocator == "paged"
        reserved = self.paged.reserved_tokens if paged else self.row.reserved_tokens
        emitted = sum(seq.token_ns.count(self.now) for seq in self.holders)
        cached = self.paged.cached_free if paged else 0
        self.ends.append(StepEnd(self.filled_tokens, reserved, cached, len(self.waiting), emitted))

    def deliver(self) -> None:
        """Answers that are complete go to those who still want them."""
        for seq in [seq for seq in self.running if seq.is_done and not seq.departed]:
            self.leave(seq)
            self.clients.end(self.asks[seq.id], "finished", self.now)

    def leave(self, seq: Seq) -> None:
        """A running sequence gives back its slot and its cache."""
        self.running.remove(seq)
        self.slots.close(seq.id, self.now)
        self.release(seq)

    def release(self, seq: Seq) -> None:
        if self.s.allocator == "paged":
            self.paged.release(seq)
        else:
            self.row.release(seq.id)

    # Decisions --------------------------------------------------------------------------------------------------

    def schedule(self) -> Plan | None:
        self.waiting.sort(key=self.queue_key)
        return {"continuous": self.continuous, "chunked": self.chunked}[self.s.policy]()

    def admissible(self, seq: Seq, spare_blocks: int = 0) -> bool:
        if len(self.running) == self.s.max_num_seqs:
            return False
        if self.s.allocator == "paged":
            return self.paged.fits_new(seq, spare_blocks)
        return self.row.first_fit(self.s.reservation(seq.request)) is not None

    def admit(self, num_tokens: int) -> Seq:
        """Moves the head of the queue to the running ones, with what it hits and room for ``num_tokens`` in all."""
        seq = self.waiting.pop(0)
        self.running.append(seq)
        if seq.first_scheduled_ns == NEVER:
            seq.first_scheduled_ns = self.now
        if self.s.prefix_caching and seq.num_preemptions == 0:
            self.first_lookups.append((self.now, seq.id, *self.paged.look_up(seq)))
        hit = self.paged.adopt_hits(seq) if self.s.allocator == "paged" else 0
        if not seq.swapped_blocks:
            seq.lookups.append((seq.known, hit))
            seq.computed = hit
        if self.s.allocator == "paged":
            self.paged.take(seq, num_tokens)
        else:
            self.row.place(seq.id, self.s.reservation(seq.request))
        return seq

    def room(self, seq: Seq, num_new: int) -> int:
        """Tokens for which a running sequence needs blocks before it computes so many."""
        return seq.computed + num_new

    def make_room(self, needs: list[tuple[Seq, int]]) -> tuple[list[Seq], int]:
        """Preempts the last admitted until the rest have blocks for what they need: (victims, bytes moved)."""
        if self.s.allocator == "contiguous":
            return [], 0
        victims, moved = [], 0
        while sum(self.paged.missing(seq, n) for seq, n in needs if seq in self.running) > self.paged.free:
            seq = self.running.pop()
            moved += self.preempt(seq)
            victims.append(seq)
        for seq, n in needs:
            if seq in self.running:
                self.paged.take(seq, n)
        return victims, moved

    def preempt(self, seq: Seq) -> int:
        seq.num_preemptions += 1
        self.waiting.append(seq)
        block_bytes = self.s.block_size * self.s.kv_bytes_per_token
        blocks = self.paged.release(seq)
        in_swap = sum(other.swapped_blocks for other in self.waiting)
        fits_swap = (in_swap + blocks) * block_bytes <= self.s.swap_space_bytes
        if self.s.preemption == "swap" and not seq.prefilling and fits_swap:
            seq.swapped_blocks = blocks
            self.swapped_bytes += blocks * block_bytes
            return blocks * block_bytes
        seq.num_recomputed_tokens += seq.computed
        seq.computed, seq.prefilling = 0, True
        return 0

    def swap_in(self, seq: Seq) -> int:
        moved = seq.swapped_blocks * self.s.block_size * self.s.kv_bytes_per_token
        self.swapped_bytes += moved
        seq.swapped_blocks = 0
        return moved

    def num_hit_tokens(self, seq: Seq) -> int:
        return len(self.paged.hits(seq)) * self.s.block_size if self.s.allocator == "paged" else 0

    def continuous(self) -> Plan | None:
        admitted: list[Seq] = []
        moved, budget = 0, self.s.max_num_batched_tokens
        while self.waiting:
            head = self.waiting[0]
            if head.swapped_blocks:  # it decodes at once: everyone's next token must fit, or it would be out again
                growth = sum(self.paged.missing(seq, seq.computed + 1) for seq in self.running if not seq.prefilling)
                if not self.admissible(head, growth):
                    break
                admitted.append(self.admit(head.computed))
                moved += self.swap_in(head)
            else:
                to_compute = head.known - self.num_hit_tokens(head)
                if to_compute > budget or not self.admissible(head):
                    break
                budget -= to_compute
                admitted.append(self.admit(head.known))
        prefills = [(seq, seq.uncomputed) for seq in admitted if seq.prefilling]
        if prefills:
            return Plan.of(prefills, admitted, [], moved, self.decode_tokens)
        victims, out = self.make_room([(seq, self.room(seq, self.decode_tokens)) for seq in self.running])
        work = [(seq, self.decode_tokens) for seq in self.running]
        return Plan.of(work, admitted, victims, moved + out, self.decode_tokens)

    def chunked(self) -> Plan | None:
        budget, work = self.s.max_num_batched_tokens, []
        for seq in self.running:
            work.append((seq, min(seq.uncomputed, budget) if seq.prefilling else self.decode_tokens))
            budget -= work[-1][1]
        victims, moved = self.make_room([(seq, self.room(seq, new)) for seq, new in work])
        work = [(seq, new) for seq, new in work if seq in self.running]
        admitted: list[Seq] = []
        while not victims and self.waiting and budget > 0 and self.admissible(self.waiting[0]):
            start = max(self.waiting[0].computed, self.num_hit_tokens(self.waiting[0]))
            new = min(self.waiting[0].known - start, budget)
            seq = self.admit(start + new)
            moved += self.swap_in(seq)
            admitted.append(seq)
            work.append((seq, new))
            budget -= new
        return Plan.of(work, admitted, victims, moved, self.decode_tokens)
