"""The measuring loop with a fake device: interleaving, warm-ups, dirty samples, interruption, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from calibrate.clock import Timing
from calibrate.contention import Contention, Reading
from calibrate.grid import Point
from calibrate.measure import Instruments, Measurement, Measurer
from calibrate.plan import Plan
from tests.profile_builders import make_point

POINTS = tuple(make_point("decode", batch, context) for batch in (1, 2, 4) for context in (1, 64))


@dataclass
class FakeDevice:
    """A clock, a machine with neighbours, and steps that take ``step_s``. ``busy`` says how many CPUs the neighbours
    take during the n-th timed sample of the run."""

    busy: Callable[[int], float] = lambda _n: 0.0
    step_s: float = 0.01
    interrupt_at: int | None = None
    too_big: Callable[[Point], bool] = lambda _p: False
    now_s: float = 100.0
    own_s: float = 0.0
    others_s: float = 0.0
    steps: list[Point] = field(default_factory=list)
    samples: int = 0
    _point: Point = POINTS[0]

    def prepare(self, point: Point) -> None:
        self._point = point

    def step(self) -> None:
        if self.interrupt_at is not None and len(self.steps) >= self.interrupt_at:
            raise KeyboardInterrupt
        if self.too_big(self._point):
            raise MemoryError
        self.steps.append(self._point)

    def time(self, step: Callable[[], object]) -> Timing:
        step()
        self._pass(1.0)  # longer than the window of contention, so that each sample is judged alone
        return Timing(self.step_s * 2, self.step_s)

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds
        self.own_s += seconds
        self.others_s += seconds * self.busy(self.samples)

    def read(self) -> Reading:
        return Reading(self.now_s, self.own_s + self.others_s, self.own_s)

    def measurer(self, plan: Plan, measurement: Measurement | None = None) -> Measurer:
        measurement = measurement or Measurement()
        return Measurer(plan, self, Instruments(self.time, "process_cpu", _Counted(self)), measurement)


class _Counted(Contention):
    """Tells the device which sample it is at."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(device.read)
        self._device = device

    def others(self) -> float | None:
        share = super().others()
        self._device.samples += 1
        return share


def run(measurer: Measurer) -> Measurement:
    measurer.run(lambda _done, _total, _what: None, lambda error: isinstance(error, MemoryError))
    return measurer.measurement


def shapes(measurement: Measurement) -> Iterator[tuple[str, int, int, int]]:
    for s in measurement.samples:
        yield s.phase, s.batch_size, s.num_new_tokens, s.num_context_tokens


def test_every_point_gets_its_samples_round_by_round() -> None:
    """All points once, then all again in another order: no point's samples stand together in time."""
    measurement = run(FakeDevice().measurer(Plan(POINTS, 4, 10.0, seed=1)))
    order = list(shapes(measurement))
    rounds = [order[i : i + len(POINTS)] for i in range(0, len(order), len(POINTS))]
    assert len(rounds) == 4
    assert all(sorted(r) == sorted(p[:4] for p in POINTS) for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1
    assert [s.order for s in measurement.samples] == list(range(len(order)))


def test_a_shape_is_warmed_twice_at_first_and_once_later() -> None:
    """Three visits of a short step take 2 + 1, 1 + 1 and 1 + 1 steps; only one of each is timed and kept."""
    device = FakeDevice()
    measurement = run(device.measurer(Plan(POINTS, 3, 10.0, seed=1)))
    assert set(Counter(device.steps).values()) == {7}
    assert set(Counter(shapes(measurement)).values()) == {3}


def test_a_long_step_is_warmed_once_and_sampled_within_its_budget() -> None:
    """Steps of 2 s with 5 s a point: two samples instead of five, and one warm-up in all."""
    device = FakeDevice(step_s=2.0)
    measurement = run(device.measurer(Plan(POINTS, 5, 5.0, seed=1)))
    assert set(Counter(shapes(measurement)).values()) == {2}
    assert set(Counter(device.steps).values()) == {3}


def test_as_served_no_timed_step_follows_one_of_its_own_shape() -> None:
    """Three visits of a short step take 1 + 1, 1 and 1 steps: warm once, when it was never seen, and after that each is
    timed behind another's."""
    device = FakeDevice()
    measurement = run(device.measurer(Plan(POINTS, 3, 10.0, seed=1, as_served=True)))
    assert set(Counter(device.steps).values()) == {4}
    assert set(Counter(shapes(measurement)).values()) == {3}


def test_as_served_a_step_of_seconds_is_taken_once() -> None:
    """Its first step is its sample: nothing is waited for twice."""
    device = FakeDevice(step_s=2.0)
    measurement = run(device.measurer(Plan(POINTS, 5, 5.0, seed=1, as_served=True)))
    assert set(Counter(shapes(measurement)).values()) == {1} == set(Counter(device.steps).values())


def test_disturbed_samples_are_repeated_and_kept_as_dirty() -> None:
    """A neighbour takes a CPU during samples 2 to 4: those three points are sampled once more each, cleanly."""
    device = FakeDevice(busy=lambda n: 1.0 if n in (2, 3, 4) else 0.0)
    measurement = run(device.measurer(Plan(POINTS, 2, 10.0, seed=1)))
    dirty = [s for s in measurement.samples if s.dirty]
    assert [s.order for s in dirty] == [2, 3, 4]
    assert all(s.other_cpus == pytest.approx(1.0) for s in dirty)
    clean = Counter(shapes(Measurement([s for s in measurement.samples if not s.dirty])))
    assert set(clean.values()) == {2} and len(clean) == len(POINTS)
    assert measurement.notes == []


def test_a_machine_that_stays_busy_is_not_waited_for() -> None:
    """Every sample is disturbed: one more round is tried, then the run ends and says so."""
    measurement = run(FakeDevice(busy=lambda _n: 1.0).measurer(Plan(POINTS, 2, 10.0, seed=1)))
    assert len(measurement.samples) == 3 * len(POINTS)
    assert measurement.notes == ["other processes disturbed every sample of 6 of 6 points; their medians were kept"]


@pytest.mark.parametrize("interrupt_at", [0, 1, 7, 20, 33])
def test_an_interrupted_run_is_continued_not_repeated(interrupt_at: int) -> None:
    """Whatever the moment of the interrupt, both runs together hold exactly the samples of one uninterrupted run."""
    plan = Plan(POINTS, 3, 10.0, seed=1)
    first = FakeDevice(interrupt_at=interrupt_at).measurer(plan)
    with pytest.raises(KeyboardInterrupt):
        run(first)
    kept = len(first.measurement.samples)
    second = run(FakeDevice().measurer(plan, Measurement(list(first.measurement.samples))))
    assert second.samples[:kept] == first.measurement.samples
    assert Counter(shapes(second)) == Counter(p[:4] for p in POINTS for _ in range(3))
    assert [s.order for s in second.samples] == list(range(3 * len(POINTS)))


def test_running_out_of_memory_leaves_out_what_is_as_large() -> None:
    """Batch 4 does not fit: its points are dropped with a note, the others are measured in full."""
    device = FakeDevice(too_big=lambda point: point.cache_tokens >= 4 * 65)
    measurement = run(device.measurer(Plan(POINTS, 2, 10.0, seed=1)))
    fitting = [p for p in POINTS if p.cache_tokens < 4 * 65]
    assert Counter(shapes(measurement)) == Counter(p[:4] for p in fitting for _ in range(2))
    assert measurement.notes == [
        "out of memory at decode batch 4 × context 64: no point as large or larger was measured (1 left out)"
    ]


def test_other_errors_are_not_hidden() -> None:
    """Only running out of memory shrinks the grid."""

    class Broken(FakeDevice):
        def step(self) -> None:
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        run(Broken().measurer(Plan(POINTS, 2, 10.0, seed=1)))


def test_progress_counts_up_to_its_total() -> None:
    """The bar never goes back and ends full."""
    seen: list[tuple[int, int]] = []
    measurer = FakeDevice().measurer(Plan(POINTS, 2, 10.0, seed=1))
    measurer.run(lambda done, total, _what: seen.append((done, total)), lambda _e: False)
    assert [done for done, _ in seen] == list(range(1, 2 * len(POINTS) + 1))
    assert seen[-1][0] == seen[-1][1]


def test_contention_looks_back_a_quarter_of_a_second() -> None:
    """Short steps are judged over a window that the kernel's 10 ms ticks can resolve, and own work is not others'."""
    times = iter([(0.0, 0.0, 0.0), (0.1, 0.1, 0.1), (0.3, 0.5, 0.3), (0.4, 0.7, 0.4)])
    contention = Contention(lambda: Reading(*next(times)))
    contention.mark()
    contention.mark()
    contention.mark()  # the first reading is still the last that is old enough
    assert contention.others() == pytest.approx((0.7 - 0.4) / 0.4)


def test_contention_is_unknown_where_the_system_does_not_tell() -> None:
    """Without counters nothing is called dirty."""
    contention = Contention(lambda: None)
    contention.mark()
    assert contention.others() is None
