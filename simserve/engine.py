"""The engine: one SimPy process that lets clients act, asks the policy, and lets time pass.

Fast-forward: while the policy's decision stands, the engine passes many steps at once. Step k of a decision ends at
``anchor + stretch.end_ns(k)`` whether the engine stopped at each step or only at the last, and it re-anchors only when
the decision changes, so fast-forward on and off give the same records to the bit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from simserve.clients.clients import Arrival, Clients, Departure
from simserve.errors import SchedulerStalled
from simserve.recorder import Recorder
from simserve.request import Batch, Sequence, WaitUntil
from simserve.scheduling import Scheduler
from simserve.step_time.stretch import StepTime, Stretch

_UNBOUNDED = 1 << 40
# Cohort clock at the last token, admission (who ran first gives back first), id, arrival, clock at joining, sequence.
Finish = tuple[int, int, int, int, int, Sequence]


@dataclass(frozen=True)
class EngineOptions:
    """How to run, apart from what is simulated: step by step or fast-forward (same records), the bandwidth at which
    preempted sequences are swapped, whom to tell how many requests have ended; whether a step is decided while the one
    before it runs; how many may wait before arrivals are answered 429 with what Retry-After; when to stop early, given
    the time and how many arrived and finished; and from how many requests on the compiled engine (``compiled``) takes
    the runs that it can (same records)."""

    fast_forward: bool = True
    swap_bytes_per_s: float = math.inf
    on_progress: Callable[[int], None] = lambda num_ended: None
    async_scheduling: bool = False
    max_queued_requests: int | None = None
    retry_after_ns: int = 0
    stop_when: Callable[[int, int, int], bool] | None = None
    compiled_from: int = 20_000  # fewer take less time than loading numba


class Engine:
    """One serving engine. ``run`` is a SimPy process; afterwards ``recorder.records`` holds what happened."""

    def __init__(
        self,
        clients: Clients,
        scheduler: Scheduler,
        step_time: StepTime,
        recorder: Recorder,
        options: EngineOptions,
    ) -> None:
        self._clients = clients
        self._scheduler = scheduler
        self._step_time = step_time
        self._recorder = recorder
        self._options = options
        self._max_stride = _UNBOUNDED if options.fast_forward else 1
        self._env = simpy.Environment()
        self._finishes: list[Finish] = []
        self._gone: list[Sequence] = []  # running, and their clients have left since the last step ended
        self._batch: Batch | None = None
        self._stretch: Stretch | None = None
        self._anchor_ns = 0
        self._step = 0  # steps of the standing decision that are done
        self._seen_ns = 0  # up to when the policy knows what clients did: now, unless scheduling is asynchronous
        if getattr(step_time, "needs_max_decode_context", False):  # most models do not, and need not say so
            scheduler.pool.cohort.watch_longest()

    def run(self, env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """Let clients act, decide, let time pass, finish; until nothing is left to do."""
        self._env, scheduler, recorder = env, self._scheduler, self._recorder
        while True:
            self._clients_act_until(self._seen_ns + 1)
            while self._gone:  # of a static batch the last to leave ends it: answers are delivered, clients go on
                self._let_go()
                self._clients_act_until(self._seen_ns + 1)
            if self._options.stop_when and self._options.stop_when(self._now_ns, *recorder.num_arrived_and_finished):
                recorder.stop(self._now_ns)
                return
            decision = scheduler.schedule(self._now_ns, self._clients.is_arrival_scheduled)
            if isinstance(decision, Batch):
                end_ns, num_steps = self._plan(decision)
                yield env.timeout(end_ns - self._now_ns)
                self._seen_ns = self._begin_ns(num_steps) if self._options.async_scheduling else self._now_ns
                self._clients_act_until(self._seen_ns)
                self._finish(decision, num_steps)
            elif self._seen_ns < self._now_ns or scheduler.pool.num_held:  # nothing could be decided beforehand
                self._seen_ns = self._now_ns
                scheduler.pool.release_held(everyone=True)
            else:
                wake_ns = self._wake_ns(decision)
                if wake_ns is None:
                    break
                recorder.idle(self._now_ns, wake_ns)
                yield env.timeout(wake_ns - self._now_ns)
                self._seen_ns = self._now_ns
        self._close()

    @property
    def _now_ns(self) -> int:
        return int(self._env.now)

    def _clients_act_until(self, end_ns: int) -> None:
        """All that clients do before ``end_ns``: send, and give up."""
        for event in self._clients.pop_until(end_ns):
            if isinstance(event, Arrival):
                self._arrive(event)
            else:
                self._depart(event)

    def _arrive(self, arrival: Arrival) -> None:
        """Queue an attempt, turn it away while too many wait, or reject what can never be served."""
        clients, waiting, request = self._clients, self._scheduler.pool.waiting, arrival.request
        limit = self._options.max_queued_requests
        self._recorder.sent(arrival)
        refusal = self._scheduler.refusal(request)
        if refusal is None and (limit is None or len(waiting) < limit):
            seq = Sequence(request, arrival_ns=arrival.time_ns)
            waiting.push(seq)
            self._recorder.queued(seq)
            clients.waits(seq, arrival.attempt)
            return
        comes_again = False
        if refusal is None:
            refusal = f"429: {limit} requests were waiting (max_queued_requests)"
            comes_again = clients.turned_away(arrival, self._options.retry_after_ns)
            self._recorder.turned_away(arrival, comes_again)
        if not comes_again:
            self._recorder.rejected(arrival, refusal)
            clients.ended(request.id, arrival.time_ns)

    def _depart(self, departure: Departure) -> None:
        """A client gives up. What waits leaves the queue now, what runs is let go when the step under way has ended."""
        seq, request_id = departure.seq, departure.request.id
        comes_again = self._clients.gave_up(departure)
        self._recorder.departed(departure, comes_again)
        if seq is not None:
            seq.has_left = True
            if seq in self._scheduler.pool.waiting:
                self._scheduler.abort(seq)
                self._recorder.abandoned(seq, departure.time_ns)
            else:
                self._gone.append(seq)
        if not comes_again:
            self._clients.ended(request_id, departure.time_ns)

    def _let_go(self) -> None:
        """Free what is held for clients that have left."""
        for seq in self._gone:
            self._release(self._scheduler.abort(seq))
            self._recorder.abandoned(seq, self._now_ns)
            self._recorder.end_span(self._now_ns)
        self._gone.clear()

    def _release(self, seqs: list[Sequence]) -> None:
        """Slots are free; whoever still waits for an answer has it."""
        now_ns, recorder = self._now_ns, self._recorder
        for seq in seqs:
            recorder.released(seq, now_ns)
            if not seq.has_left:
                recorder.delivered(seq, now_ns)
                self._clients.ended(seq.id, now_ns)

    def _plan(self, batch: Batch) -> tuple[int, int]:
        """When the engine stops next, and the steps until then."""
        if batch is not self._batch:
            self._change_decision(batch)
        else:
            self._recorder.continue_span(self._now_ns)
        assert self._stretch is not None
        num_steps = self._scheduler.steady_steps(batch, min(self._max_stride, self._steps_to_finish(batch)))
        if num_steps > 1:
            last_ns = self._anchor_ns + self._stretch.end_ns(self._step + num_steps - 1)
            event_ns = self._interruption_ns(last_ns)
            if event_ns is not None:
                num_steps = min(num_steps, self._steps_until_seen(event_ns))
        return self._anchor_ns + self._stretch.end_ns(self._step + num_steps), num_steps

    def _steps_until_seen(self, event_ns: int) -> int:
        """Steps until the first decision that can take an event into account."""
        assert self._stretch is not None
        elapsed_ns = event_ns - self._anchor_ns
        if not self._options.async_scheduling:
            return max(1, self._stretch.steps_until(elapsed_ns) - self._step)
        return max(1, (self._stretch.steps_until(elapsed_ns) if elapsed_ns > 0 else 0) + 1 - self._step)

    def _begin_ns(self, num_steps: int) -> int:
        """When the last of ``num_steps`` steps, which ends now, began."""
        assert self._stretch is not None
        step = self._step + num_steps
        return self._anchor_ns + (self._stretch.end_ns(step - 1) if step > 1 else 0)

    def _interruption_ns(self, last_ns: int) -> int | None:
        """The first event up to ``last_ns`` that may change the decision, or after which clients may do what is not
        known yet: give up, come again, send the next request."""
        clients, limit = self._clients, self._options.max_queued_requests
        reaction_ns = clients.next_reaction_ns
        if reaction_ns is not None and reaction_ns <= last_ns:
            last_ns = reaction_ns
        else:
            reaction_ns = None
        room = _UNBOUNDED if limit is None else limit - len(self._scheduler.pool.waiting)
        for request in clients.peek_until(last_ns + 1):
            if room <= 0 or self._scheduler.can_interrupt(request) or clients.gives_up_by(request, last_ns):
                return request.arrival_ns
            room -= 1
        return reaction_ns

    def _change_decision(self, batch: Batch) -> None:
        now_ns = self._now_ns
        self._recorder.end_span(now_ns)
        for seq in batch.preempted:
            self._recorder.preempted(seq, now_ns)
        for seq in batch.paused:
            self._recorder.paused(seq)
        for seq in batch.resumed:
            self._recorder.resumed(seq)
            self._expect_finish(seq)
        for seq in batch.admitted:
            self._recorder.admitted(seq, now_ns)
            if seq.joined_clock >= 0:
                self._expect_finish(seq)
        lead_s = batch.transfer_bytes / self._options.swap_bytes_per_s
        self._batch, self._anchor_ns, self._step = batch, now_ns, 0
        self._stretch = Stretch(self._step_time, batch, lead_s)
        self._recorder.begin_span(batch, self._stretch, now_ns)

    def _finish(self, batch: Batch, num_steps: int) -> None:
        """Account for ``num_steps`` steps of the decision that end now."""
        now_ns, cohort = self._now_ns, self._scheduler.pool.cohort
        num_live, begin = len(cohort), self._step
        complete = self._scheduler.finish_step(batch, num_steps)
        self._recorder.advance(begin, num_steps, num_live)
        self._step += num_steps
        for seq in complete:
            self._recorder.emitted_by_prefill(seq, now_ns)
            self._expect_finish(seq)
        while self._finishes and self._finishes[0][0] <= cohort.clock:
            self._last_token(heapq.heappop(self._finishes))
        self._let_go()  # those who left before now
        self._options.on_progress(self._recorder.num_ended)

    def _last_token(self, finish: Finish) -> None:
        *_, joined_clock, seq = finish
        if joined_clock != seq.joined_clock:
            return  # preempted since: another entry stands for it
        self._recorder.last_token(seq, self._now_ns)
        if not seq.has_left:  # else it is let go of in a moment, as unfinished ones are
            self._release(self._scheduler.finish(seq))
        self._recorder.end_span(self._now_ns)

    def _expect_finish(self, seq: Sequence) -> None:
        """The finish check: the only reader of a true output length. The sequence has just joined the cohort."""
        remaining = seq.request.num_output_tokens - seq.num_generated_tokens
        joined = seq.joined_clock
        last = joined + self._scheduler.pool.cohort.steps_to_emit(seq, remaining)
        heapq.heappush(self._finishes, (last, seq.admission, seq.id, seq.arrival_ns, joined, seq))

    def _steps_to_finish(self, batch: Batch) -> int:
        """Steps until the next decoding sequence has its last token."""
        if batch.prefills and not batch.num_decodes:
            return self._max_stride
        while self._finishes[0][-2] != self._finishes[0][-1].joined_clock:
            heapq.heappop(self._finishes)
        return self._finishes[0][0] - self._scheduler.pool.cohort.clock

    def _wake_ns(self, decision: WaitUntil | None) -> int | None:
        """When an idle engine has to look again: when a client acts, or the time the policy named."""
        times = [self._clients.next_ns, decision.time_ns if decision else None]
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def _close(self) -> None:
        self._recorder.end_span(self._now_ns)
        pool = self._scheduler.pool
        if pool.waiting:
            head = pool.waiting.head()
            raise SchedulerStalled(
                f"request {head.id} waits with nothing running: it needs room for {head.num_known_tokens} tokens, "
                f"and {pool.allocator.num_free_blocks} blocks are free"
            )
