"""The engine: one SimPy process that admits arrivals, asks the policy, and lets time pass.

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

from simserve.clients.arrivals import Arrivals
from simserve.errors import SchedulerStalled
from simserve.recorder import Recorder
from simserve.request import Batch, Sequence, WaitUntil
from simserve.scheduling import Scheduler
from simserve.step_time.stretch import StepTime, Stretch

_UNBOUNDED = 1 << 40
Finish = tuple[int, int, int, Sequence]  # cohort clock at the last token, id, clock when it joined, sequence


@dataclass(frozen=True)
class EngineOptions:
    """How to run, apart from what is simulated: step by step or fast-forward (same records), the bandwidth at which
    preempted sequences are swapped, whom to tell how many requests have ended; how many may wait before arrivals are
    answered 429 with what Retry-After; and when to stop early, given the time and how many arrived and finished."""

    fast_forward: bool = True
    swap_bytes_per_s: float = math.inf
    on_progress: Callable[[int], None] = lambda num_ended: None
    max_queued_requests: int | None = None
    retry_after_ns: int = 0
    stop_when: Callable[[int, int, int], bool] | None = None


class Engine:
    """One serving engine. ``run`` is a SimPy process; afterwards ``recorder.records`` holds what happened."""

    def __init__(
        self,
        arrivals: Arrivals,
        scheduler: Scheduler,
        step_time: StepTime,
        recorder: Recorder,
        options: EngineOptions,
    ) -> None:
        self._arrivals = arrivals
        self._scheduler = scheduler
        self._step_time = step_time
        self._recorder = recorder
        self._options = options
        self._max_stride = _UNBOUNDED if options.fast_forward else 1
        self._env = simpy.Environment()
        self._finishes: list[Finish] = []
        self._batch: Batch | None = None
        self._stretch: Stretch | None = None
        self._anchor_ns = 0
        self._step = 0  # steps of the standing decision that are done

    def run(self, env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """Admit, decide, let time pass, finish; until nothing is left to do."""
        self._env, arrivals, scheduler = env, self._arrivals, self._scheduler
        while True:
            self._submit_until(self._now_ns + 1)
            decision = scheduler.schedule(self._now_ns, arrivals.next_ns is not None)
            if isinstance(decision, Batch):
                end_ns, num_steps = self._plan(decision)
                yield env.timeout(end_ns - self._now_ns)
                self._submit_until(self._now_ns)
                self._finish(decision, num_steps)
            else:
                wake_ns = self._wake_ns(decision)
                if wake_ns is None:
                    break
                self._recorder.idle(self._now_ns, wake_ns)
                yield env.timeout(wake_ns - self._now_ns)
        self._close()

    @property
    def _now_ns(self) -> int:
        return int(self._env.now)

    def _submit_until(self, end_ns: int) -> None:
        """Queue the requests that arrive before ``end_ns``, or reject those that can never be served."""
        for request in self._arrivals.pop_until(end_ns):
            refusal = self._scheduler.refusal(request)
            if refusal is None:
                self._scheduler.pool.waiting.push(Sequence(request))
                self._recorder.arrived(request)
            else:
                self._recorder.rejected(request, refusal)

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
            for request in self._arrivals.peek_until(last_ns + 1):
                if self._scheduler.can_interrupt(request):
                    elapsed_ns = request.arrival_ns - self._anchor_ns
                    num_steps = max(1, self._stretch.steps_until(elapsed_ns) - self._step)
                    break
        return self._anchor_ns + self._stretch.end_ns(self._step + num_steps), num_steps

    def _change_decision(self, batch: Batch) -> None:
        now_ns = self._now_ns
        self._recorder.end_span(now_ns)
        for seq in batch.preempted:
            self._recorder.preempted(seq, now_ns)
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
        self._options.on_progress(self._recorder.num_ended)

    def _last_token(self, finish: Finish) -> None:
        now_ns, seq = self._now_ns, finish[3]
        if finish[2] != seq.joined_clock:
            return  # preempted since: another entry stands for it
        self._recorder.last_token(seq, now_ns)
        for done in self._scheduler.finish(seq):
            self._recorder.delivered(done, now_ns)
        self._recorder.end_span(now_ns)

    def _expect_finish(self, seq: Sequence) -> None:
        """The finish check: the only reader of a true output length. The sequence has just joined the cohort."""
        remaining = seq.request.num_output_tokens - seq.num_generated_tokens
        heapq.heappush(self._finishes, (seq.joined_clock + remaining, seq.id, seq.joined_clock, seq))

    def _steps_to_finish(self, batch: Batch) -> int:
        """Steps until the next decoding sequence has its last token."""
        if not batch.num_decodes:
            return self._max_stride
        while self._finishes[0][2] != self._finishes[0][3].joined_clock:
            heapq.heappop(self._finishes)
        return self._finishes[0][0] - self._scheduler.pool.cohort.clock

    def _wake_ns(self, decision: WaitUntil | None) -> int | None:
        """When an idle engine has to look again: the next arrival, or the time the policy named."""
        times = [self._arrivals.next_ns, decision.time_ns if decision else None]
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
