"""The measuring loop over a server: round after round, one prompt alone or B equal streams, until every point has its
samples, the server has no room, or time is up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean

from calibrate.grid import Point
from calibrate.server.client import Answer, Refused
from calibrate.server.dialect import Dialect
from calibrate.server.load import Client, GaveUp
from calibrate.server.window import lead_of, steady_window
from simserve.step_time.profile_schema import Sample

MAX_OUTPUT_TOKENS = 1024
_LATE_SHARE = 0.2  # of a sample: a client that was later than this disturbed it
_TRIES = 4
_LEAST_PROMPT = 4

OnProgress = Callable[[int, int, str], None]


class NoRoom(Exception):
    """The server never ran the point's streams together, or refused its length."""


@dataclass
class Findings:
    """Samples, and what the loads told beside them. ``offs``: tokens by which a window's context, or a prompt, missed
    its nominal one; ``lags_s``: how late this client was while it measured."""

    samples: list[Sample]
    left_out: dict[Point, str] = field(default_factory=dict)
    countings: Counter[str] = field(default_factory=Counter)
    offs: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)

    def of(self, point: Point) -> list[Sample]:
        """The samples of one point."""
        shape = point.phase, point.batch_size, point.num_new_tokens, point.num_context_tokens
        return [
            s for s in self.samples if (s.phase, s.batch_size, s.num_new_tokens, s.num_context_tokens) == tuple(shape)
        ]


class ServerMeasurer:
    """Fills ``findings``. Stop it at any time; another one with the same findings goes on from there."""

    def __init__(self, client: Client, dialect: Dialect, findings: Findings, window: int, seed: int) -> None:
        self._client = client
        self._dialect = dialect
        self.findings = findings
        self._window = window
        # Another run must not repeat the prompts of this one: they may still be in a prefix cache.
        self._prompts = random.Random()
        self._order = random.Random(seed)
        self._leads: dict[Point, tuple[int, float]] = {}
        self._warm: set[Point] = set()
        self._miss = 0.0

    async def run(self, points: Sequence[Point], repeats: int, on_progress: OnProgress) -> None:
        """Measure each point ``repeats`` times, each later round in another order, so that drift spreads over the
        grid; points whose samples were disturbed get as many more rounds. Raises ``OutOfTime``, ``GaveUp``."""
        for number in range(2 * repeats):
            pending = [p for p in points if self._pending(p, number, repeats)]
            if number >= repeats and not pending:
                return
            if number == 0:  # from small to large, so that tables can be made of whatever time allows
                pending.sort(key=lambda point: point.cache_tokens)
            else:
                self._order.shuffle(pending)
            for point in pending:
                if point not in self.findings.left_out:
                    await self._visit(point, points)
                    done = sum(min(repeats, len(self.findings.of(p))) for p in points)
                    on_progress(done, repeats * (len(points) - len(self.findings.left_out)), str(point))

    def _pending(self, point: Point, round_number: int, repeats: int) -> bool:
        samples = self.findings.of(point)
        clean = sum(not sample.dirty for sample in samples)
        return clean < repeats and (round_number >= repeats or len(samples) <= round_number)

    async def _visit(self, point: Point, points: Iterable[Point]) -> None:
        measure = self._prefill if point.phase == "prefill" else self._decode
        try:
            if point not in self._warm:
                await measure(point)  # the first of a shape is slow: compilation, allocation, page faults
                self._warm.add(point)
            self._client.lags_s.clear()
            seconds = await measure(point)
        except NoRoom as error:
            self._leave_out(point, points, str(error))
        else:
            self._keep(point, seconds)

    async def _prefill(self, point: Point) -> float:
        """TTFT of one prompt alone. One token is asked for, so that the first event holds no second one."""
        [answer] = await self._together([self._dialect.body(point.num_new_tokens, 1, self._prompts)])
        self._miss = float((answer.num_prompt_tokens or point.num_new_tokens) - point.num_new_tokens)
        return answer.ttft_s

    async def _decode(self, point: Point) -> float:
        """ITL of equal streams over the window in which all decode. How many tokens the first stream has by the time
        that the last is prefilled is known only afterwards, so the first visit may take a few tries."""
        for _ in range(_TRIES):
            lead, mean_lead = self._leads.get(point, (1, 1.0))
            num_output = lead + self._window + 2
            if num_output > MAX_OUTPUT_TOKENS:
                break
            num_prompt = max(_LEAST_PROMPT, round(point.num_context_tokens - mean_lead - self._window / 2))
            bodies = [self._dialect.body(num_prompt, num_output, self._prompts) for _ in range(point.batch_size)]
            answers = await self._together(bodies)
            window = steady_window(answers)
            self._leads[point] = self._lead(answers, lead)
            if window is not None and window.num_tokens >= self._window / 2:
                self.findings.countings[answers[0].counting] += 1
                context = mean(a.num_prompt_tokens or num_prompt for a in answers) + window.mean_generated
                self._miss = context - point.num_context_tokens
                return window.itl_s
        raise NoRoom(f"{point.batch_size} streams of {point.num_context_tokens} tokens never decoded together")

    def _lead(self, answers: Sequence[Answer], before: int) -> tuple[int, float]:
        """The lead to allow for next time; twice as much where the first streams ended before the last began."""
        start_s = max(answer.times[0] for answer in answers)
        ended = any(answer.times[-1] <= start_s for answer in answers)
        lead = 2 * (before + self._window) if ended else lead_of(answers)
        window = steady_window(answers)
        return lead, window.lead if window else lead / 2

    async def _together(self, bodies: list[dict[str, object]]) -> list[Answer]:
        try:
            return await self._client.together(bodies)
        except Refused as error:
            if error.status in (400, 413, 422):
                raise NoRoom(f"the server refused it ({error.status})") from None
            raise GaveUp(f"{self._client.address}: must go on answering (got HTTP {error.status})", False) from None
        except GaveUp as error:
            if error.busy and len(bodies) > 1:
                raise NoRoom("the server was too busy for it, or fell silent") from None
            raise

    def _keep(self, point: Point, seconds: float) -> None:
        late_s = max(self._client.lags_s, default=0.0) if point.phase == "prefill" else self._usual_lag_s()
        self.findings.offs.append(self._miss)
        self.findings.lags_s += self._client.lags_s
        sample = Sample(
            phase=point.phase,
            batch_size=point.batch_size,
            num_new_tokens=point.num_new_tokens,
            num_context_tokens=point.num_context_tokens,
            wall_s=seconds,
            cpu_s=None,
            cuda_s=None,
            other_cpus=None,
            order=len(self.findings.samples),
            held_out=point.held_out,
            dirty=late_s > _LATE_SHARE * seconds,
        )
        self.findings.samples.append(sample)

    def _usual_lag_s(self) -> float:
        """Over a window of many tokens only a client that is late as a rule matters."""
        return mean(self._client.lags_s) if self._client.lags_s else 0.0

    def _leave_out(self, point: Point, points: Iterable[Point], why: str) -> None:
        """What needs as much cannot be had either."""
        for other in points:
            larger = other.row >= point.row and other.num_context_tokens >= point.num_context_tokens
            if other.phase == point.phase and larger and not self.findings.of(other):
                self.findings.left_out.setdefault(other, why)
        self.findings.left_out.setdefault(point, why)
