"""What a request costs, printed as the tables of VALIDATION.md: ``python -m tests.benchmarks.speed``.

Three tables: every regime on both engines; how cost grows with the number of requests; policies over allocators. Needs
a quiet machine and about three minutes. ``--quick`` runs a hundredth of it, once, to see that it works.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import Progress

from tests.benchmarks.cases import MIN_SECONDS, AllocatorName, Case, Cost, EngineName, PolicyName, measure, regime_named
from tests.benchmarks.regimes import REGIMES, Regime

POLICIES: tuple[PolicyName, ...] = ("static", "continuous", "chunked")
ALLOCATORS: tuple[AllocatorName, ...] = ("contiguous", "paged")
ENGINES: dict[EngineName, tuple[int, ...]] = {
    "python": (1_000, 10_000, 100_000),
    "compiled": (10_000, 100_000, 1_000_000),
}
TYPICAL: dict[EngineName, int] = {"python": 10_000, "compiled": 1_000_000}
Costs = dict[Case, Cost]


def cases(shrink: int = 1) -> list[Case]:
    """All that is measured; ``shrink`` divides the numbers of requests."""
    wanted: dict[Case, None] = {}
    for regime in REGIMES:
        for engine, sizes in ENGINES.items():
            wanted |= {case: None for case in _sized(regime, engine, sizes, shrink)}
        for policy in POLICIES:
            for allocator in ALLOCATORS:
                wanted[Case(regime.name, _size(regime, TYPICAL["python"], shrink), "python", policy, allocator)] = None
    return list(wanted)


def run(wanted: Sequence[Case], console: Console, min_seconds: float) -> Costs:
    """Measure each case that this machine can run, one at a time."""
    done: Costs = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(wanted))
        for case in wanted:
            progress.update(task, description=f"{case.regime}, {case.engine}, {case.num_requests:,} requests")
            if not regime_named(case.regime).missing:
                done[case] = measure(case, min_seconds)
            progress.advance(task)
    return done


def tables(costs: Costs, shrink: int = 1) -> Iterator[str]:
    """The three tables in Markdown, what could not run last."""
    rates = sorted(cost.timeouts_per_s for cost in costs.values())
    yield f"Bare SimPy timeouts in the same processes: {rates[len(rates) // 2] / 1e6:.2f} million/s (median).\n"
    yield from _regimes(costs, shrink)
    yield from _growth(costs, shrink)
    yield from _policies(costs, shrink)
    for regime in REGIMES:
        if regime.missing:
            yield f"{regime.name} was not run: {regime.missing}.\n"


def _regimes(costs: Costs, shrink: int) -> Iterator[str]:
    yield "| regime | engine | requests | requests/s | simulated steps/s | SimPy timeouts a request costs | peak RSS |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for regime in REGIMES:
        for engine, size in TYPICAL.items():
            cost = costs.get(Case(regime.name, _size(regime, size, shrink), engine))
            if cost is not None:
                yield (
                    f"| {regime.name}: {regime.about}{_happened(cost)} | {engine} | {cost.num_requests:,} "
                    f"| {_three(cost.requests_per_s)} | {_three(cost.steps_per_s)} "
                    f"| {_three(cost.timeouts_per_request)} | {cost.peak_rss_bytes / 2**20:,.0f} MiB |"
                )
    yield ""


def _growth(costs: Costs, shrink: int) -> Iterator[str]:
    columns = [(engine, size) for engine, sizes in ENGINES.items() for size in sizes]
    yield "µs a request, by how many there are\n"
    yield "| regime | " + " | ".join(f"{engine} {size // shrink:,}" for engine, size in columns) + " |"
    yield "| --- |" + " ---: |" * len(columns)
    for regime in REGIMES:
        if not regime.missing:
            found = (_cost(costs, regime, engine, size // shrink) for engine, size in columns)
            yield f"| {regime.name} | " + " | ".join(_us(cost) for cost in found) + " |"
    yield ""


def _policies(costs: Costs, shrink: int) -> Iterator[str]:
    pairs = [(policy, allocator) for policy in POLICIES for allocator in ALLOCATORS]
    yield "requests/s of the Python engine, by policy and allocator\n"
    yield "| regime | " + " | ".join(f"{policy}, {allocator}" for policy, allocator in pairs) + " |"
    yield "| --- |" + " ---: |" * len(pairs)
    for regime in REGIMES:
        size = _size(regime, TYPICAL["python"], shrink)
        found = [costs.get(Case(regime.name, size, "python", *pair)) for pair in pairs]
        if any(found):
            yield (
                f"| {regime.name} | " + " | ".join(_three(cost.requests_per_s) if cost else "" for cost in found) + " |"
            )
    yield ""


def _sized(regime: Regime, engine: EngineName, sizes: Sequence[int], shrink: int) -> Iterator[Case]:
    if not (engine == "compiled" and regime.settings.prefix_caching):  # which it leaves to the other engine
        for size in sizes:
            yield Case(regime.name, _size(regime, size, shrink), engine)


def _size(regime: Regime, size: int, shrink: int) -> int:
    return min(regime.max_requests, size) // shrink


def _cost(costs: Costs, regime: Regime, engine: EngineName, size: int) -> Cost | None:
    return costs.get(Case(regime.name, size, engine))


def _happened(cost: Cost) -> str:
    preempted = f"; {cost.num_preemptions:,} preemptions" if cost.num_preemptions else ""
    return preempted + (f"; {cost.num_found_tokens / 1e6:.0f} million tokens found" if cost.num_found_tokens else "")


def _us(cost: Cost | None) -> str:
    return "" if cost is None else f"{1e6 / cost.requests_per_s:.3g}"


def _three(value: float) -> str:
    """Three significant digits, thousands separated."""
    digits = max(0, len(str(int(value))) - 3)
    return f"{round(value, -digits):,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the requests")
    shrink = 100 if parser.parse_args().quick else 1
    min_seconds = 0.0 if shrink > 1 else MIN_SECONDS
    for line in tables(run(cases(shrink), Console(stderr=True), min_seconds), shrink):
        print(line)


if __name__ == "__main__":
    main()
