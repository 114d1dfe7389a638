"""The measuring loop: visit points round by round, warm, time, judge, keep."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from calibrate.clock import Clock, Timer, Timing
from calibrate.contention import DIRTY_CPUS, Contention
from calibrate.grid import Point
from calibrate.plan import ANCHORS_PER_ROUND, LONG_STEP_S, Plan
from simserve.step_time.profile_schema import GpuClocks, Sample


class Steps(Protocol):
    """Something whose steps can be timed: ``forward.Stepper``."""

    def prepare(self, point: Point) -> None: ...

    def step(self) -> None: ...


@dataclass(frozen=True)
class Instruments:
    """How a step is timed, whose reading counts, and who watches the neighbours."""

    timer: Timer
    clock: Clock
    contention: Contention


OnProgress = Callable[[int, int, str], None]


@dataclass
class Measurement:
    """Samples so far, and what the reader of the profile should know about how they came about."""

    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    session: int = 0
    gpu_clocks: GpuClocks | None = None

    def of(self, point: Point) -> list[Sample]:
        """The samples of one point that this session measured, anchors apart; of a chain its last steps."""
        mine = (s for s in self.samples if s.shape == point.shape and s.session == self.session and not s.anchor)
        return [s for s in mine if (s.num_repeats > 0) == (point.num_repeats > 0)]


class Measurer:
    """Fills a ``Measurement`` by a ``Plan``. Interrupt it at any time: whatever ``measurement`` holds can be continued
    by another measurer with the same plan."""

    def __init__(self, plan: Plan, steps: Steps, instruments: Instruments, measurement: Measurement) -> None:
        self._plan = plan
        self._steps = steps
        self._timer, self._clock = instruments.timer, instruments.clock
        self._contention = instruments.contention
        self.measurement = measurement
        self._clean: dict[Point, int] = {}
        self._step_s: dict[Point, float] = {}
        self._lost: set[Point] = set()
        for point in plan.points:
            samples = measurement.of(point)
            self._clean[point] = sum(not sample.dirty for sample in samples)
            if samples:
                self._step_s[point] = median(seconds_of(sample, self._clock) for sample in samples)

    def run(self, on_progress: OnProgress, is_out_of_memory: Callable[[BaseException], bool]) -> None:
        """Measure until every point has its clean samples, or a round of repeats brings no clean one."""
        for _ in self.rounds(on_progress, is_out_of_memory):
            pass

    def rounds(self, on_progress: OnProgress, is_out_of_memory: Callable[[BaseException], bool]) -> Iterator[None]:
        """As ``run``, stopping after every round, so that others can measure theirs in between."""
        gc.collect()  # once: with torch loaded it takes longer than most steps
        for number, order in enumerate(self._plan.rounds()):
            pending = [point for point in order if self._pending(point, number)]
            clean_before = sum(self._clean.values())
            anchor_every = max(1, -(-len(order) // ANCHORS_PER_ROUND))
            for index, point in enumerate(pending):
                if index % anchor_every == 0:
                    self._visit_anchor(is_out_of_memory)
                if point not in self._lost:
                    self._visit(point, is_out_of_memory)
                    on_progress(self._num_done(), self._num_wanted(), str(point))
            repeating = number >= self._plan.repeats
            if repeating and pending and sum(self._clean.values()) == clean_before:
                break
            yield
        self._note_dirty()

    def _pending(self, point: Point, round_number: int) -> bool:
        wanted = self._plan.wanted_of(point, self._step_s.get(point))
        have = self._clean[point]
        return have < wanted and (round_number >= self._plan.repeats or len(self.measurement.of(point)) <= round_number)

    def _visit(self, point: Point, is_out_of_memory: Callable[[BaseException], bool], as_anchor: bool = False) -> None:
        try:
            if point.num_repeats:
                self._sample_chain(point)
            else:
                self._sample(point, as_anchor)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._give_up(point)

    def _visit_anchor(self, is_out_of_memory: Callable[[BaseException], bool]) -> None:
        anchor = self._plan.anchor
        if anchor is not None and anchor not in self._lost:
            self._visit(anchor, is_out_of_memory, as_anchor=True)

    def _sample(self, point: Point, as_anchor: bool = False) -> None:
        for warm_up in range(self._plan.num_warm_ups(self._step_s.get(point))):
            self._contention.mark()
            self._steps.prepare(point)
            first = self._timer(self._steps.step)
            if self._plan.is_enough(first.by(self._clock)):
                self._keep(point, first, as_anchor)
                return
            if warm_up == 0 and first.by(self._clock) > LONG_STEP_S:
                break
        self._steps.prepare(point)
        self._contention.mark()
        gc.disable()
        try:
            timing = self._timer(self._steps.step)
        finally:
            gc.enable()
        self._keep(point, timing, as_anchor)

    def _sample_chain(self, point: Point) -> None:
        """The later steps of a chain, which ends in ``point``: they follow steps of their own decision. It is shorter
        where its steps are long, which one of them tells beforehand."""
        if (step_s := self._step_s.get(point)) is None:
            alone = point._replace(num_repeats=0)
            self._steps.prepare(alone)
            step_s = self._step_s[point] = self._timer(self._steps.step).by(self._clock)
        num_repeats = self._plan.num_repeats(point, step_s)
        self._steps.prepare(point._replace(num_repeats=num_repeats))
        timings = []
        self._contention.mark()
        gc.disable()
        try:
            for _ in range(num_repeats + 1):
                timings.append(self._timer(self._steps.step))
        finally:
            gc.enable()
        others = self._contention.others()
        for number in range((num_repeats + 1) // 2, num_repeats + 1):
            context = point.num_context_tokens - num_repeats + number
            later = point._replace(num_context_tokens=context, num_repeats=number)
            self._add(later, timings[number], others)
        self._clean[point] += not self.measurement.samples[-1].dirty

    def _keep(self, point: Point, timing: Timing, as_anchor: bool) -> None:
        self._add(point, timing, self._contention.others(), as_anchor)
        if not as_anchor:
            self._clean[point] += not self.measurement.samples[-1].dirty
        self._step_s.setdefault(point, timing.by(self._clock))

    def _add(self, point: Point, timing: Timing, others: float | None, as_anchor: bool = False) -> None:
        dirty = others is not None and others > DIRTY_CPUS
        sample = Sample(
            phase=point.phase,
            batch_size=point.batch_size,
            num_new_tokens=point.num_new_tokens,
            num_context_tokens=point.num_context_tokens,
            wall_s=timing.wall_s,
            cpu_s=timing.cpu_s,
            cuda_s=timing.cuda_s,
            other_cpus=None if others is None else round(others, 3),
            order=len(self.measurement.samples),
            held_out=point.held_out,
            dirty=dirty,
            num_decodes=point.num_decodes,
            num_decode_context_tokens=point.num_decode_context_tokens,
            context_spread=point.context_spread,
            host_s=timing.host_s,
            session=self.measurement.session,
            anchor=as_anchor,
            num_repeats=point.num_repeats,
        )
        self.measurement.samples.append(sample)

    def _give_up(self, point: Point) -> None:
        """Memory ran out: no point of this phase that needs as much can be had either."""
        lost = [p for p in self._plan.points if p.phase == point.phase and p.cache_tokens >= point.cache_tokens]
        lost = [p for p in lost if not self.measurement.of(p)] or [point]
        self._lost.update(lost)
        rule = "no point as large or larger was measured"
        self.measurement.notes.append(f"out of memory at {point}: {rule} ({len(lost)} left out)")

    def _note_dirty(self) -> None:
        disturbed = [p for p in self._plan.points if p not in self._lost and not self._clean[p]]
        if disturbed:
            share = f"{len(disturbed)} of {len(self._plan.points)} points"
            self.measurement.notes.append(f"other processes disturbed every sample of {share}; their medians were kept")

    def _num_done(self) -> int:
        return sum(
            min(len(self.measurement.of(p)), self._plan.wanted_of(p, self._step_s.get(p))) for p in self._alive()
        )

    def _num_wanted(self) -> int:
        return sum(self._plan.wanted_of(p, self._step_s.get(p)) for p in self._alive())

    def _alive(self) -> list[Point]:
        return [point for point in self._plan.points if point not in self._lost]


def seconds_of(sample: Sample, clock: Clock) -> float:
    """A sample's step time by the chosen clock."""
    return sample.seconds(clock)
