"""One case = a regime, a number of requests, a policy over an allocator, an engine; what it costs, in its own process.

Costs are processor time, which a busy machine stretches less than the clock on the wall; the rate of raw SimPy
timeouts, taken before and after in the same process, tells what the machine was worth at that moment.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from dataclasses import dataclass, replace
from typing import Literal

import simpy

from simserve.engine import EngineOptions
from simserve.records import Records
from simserve.request import RequestTable
from simserve.simulate import run_engine
from tests.benchmarks.regimes import REGIMES, Regime, roofline
from tests.builders import build_scheduler
from tests.reference_types import Settings

NUM_TIMEOUTS = 100_000
MIN_SECONDS = 1.0  # a case is repeated until it has run for as long; the fastest run counts
MIN_RUNS = 3  # of the compiled engine, which a page fault can double
WARM_UP = 200  # requests of a run beforehand: what is loaded or compiled once is not what a request costs
EngineName = Literal["python", "compiled"]
PolicyName = Literal["static", "continuous", "chunked"]
AllocatorName = Literal["paged", "contiguous"]


@dataclass(frozen=True)
class Case:
    """What to run: the regime by its name (its settings with another policy or allocator, if any), on which engine."""

    regime: str
    num_requests: int
    engine: EngineName = "python"
    policy: PolicyName = "chunked"
    allocator: AllocatorName = "paged"

    def settings(self) -> Settings:
        """The regime's server with this policy and allocator; policies that do not chunk get room for whole prompts."""
        own = regime_named(self.regime).settings
        if (self.policy, self.allocator) == (own.policy, own.allocator):
            return own
        budget = own.max_num_batched_tokens if self.policy == "chunked" else own.max_model_len
        sharing = own.prefix_caching and self.allocator == "paged"
        return replace(
            own,
            policy=self.policy,
            allocator=self.allocator,
            max_num_batched_tokens=budget,
            prefix_caching=sharing,
        )


@dataclass(frozen=True)
class Cost:
    """What a case took, and what happened in it."""

    num_requests: int
    run_s: float  # processor time of the engine loop
    num_steps: int
    num_preemptions: int
    num_found_tokens: int
    peak_rss_bytes: int
    timeouts_per_s: float

    @property
    def requests_per_s(self) -> float:
        return self.num_requests / self.run_s

    @property
    def steps_per_s(self) -> float:
        """Simulated steps per second of processor time."""
        return self.num_steps / self.run_s

    @property
    def timeouts_per_request(self) -> float:
        """How many raw SimPy timeouts cost as much as one request: the figure to compare between machines."""
        return self.timeouts_per_s / self.requests_per_s


def regime_named(name: str) -> Regime:
    """The regime of this name."""
    return next(regime for regime in REGIMES if regime.name == name)


def measure(case: Case, min_seconds: float = MIN_SECONDS) -> Cost:
    """The case in a process of its own, whose memory nothing else has touched."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(cost_of(case, min_seconds)))
    process.start()
    sender.close()
    try:
        cost: Cost = receiver.recv()
    except EOFError:
        raise SystemExit(f"{case} failed in its process; its traceback is above") from None
    finally:
        process.join()
    return cost


def cost_of(case: Case, min_seconds: float = MIN_SECONDS) -> Cost:
    """The case in this process."""
    regime = regime_named(case.regime)
    run_case(replace(case, num_requests=WARM_UP))
    table, runs = regime.table(case.num_requests), list[float]()
    rates = [timeouts_per_s()]
    while True:
        scheduler = build_scheduler(case.settings())
        began = time.process_time()
        records = run_engine(table, scheduler, roofline(), _options(case.engine))
        runs.append(time.process_time() - began)
        if sum(runs) >= min_seconds and (len(runs) >= MIN_RUNS or case.engine == "python" or not min_seconds):
            break
        del records  # one run's memory is what is asked for
    rates.append(timeouts_per_s())
    return Cost(
        len(table),
        min(runs),
        records.num_steps,
        records.num_preemptions,
        records.num_found_tokens,
        1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        sum(rates) / 2,
    )


def run_case(case: Case, table: RequestTable | None = None, fast_forward: bool = True) -> Records:
    """What the engine records of the case, or of requests of the caller's."""
    if table is None:
        table = regime_named(case.regime).table(case.num_requests)
    options = replace(_options(case.engine), fast_forward=fast_forward)
    return run_engine(table, build_scheduler(case.settings()), roofline(), options)


def timeouts_per_s() -> float:
    """Bare SimPy timeouts per second of processor time: the yardstick."""
    env = simpy.Environment()

    def process() -> simpy.events.ProcessGenerator:
        for _ in range(NUM_TIMEOUTS):
            yield env.timeout(1)

    env.process(process())
    began = time.process_time()
    env.run()
    return NUM_TIMEOUTS / (time.process_time() - began)


def _options(engine: EngineName) -> EngineOptions:
    return EngineOptions(compiled_from=0 if engine == "compiled" else 1 << 62)
