"""Ask the runner for runs of a study, many at a time, each simulated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simserve.knee.study import Ask, Study
from simserve.tasks.runner import Runner
from simserve.tasks.task import Measures


@dataclass
class Probe:
    """Runs of one variant of a study. ``num_simulations`` counts those asked for, each once."""

    study: Study
    variant: str
    runner: Runner

    def __post_init__(self) -> None:
        self._known: dict[tuple[Ask, bool], Measures] = {}

    @property
    def num_simulations(self) -> int:
        """Different runs asked for so far."""
        return len(self._known)

    def run(self, asks: Sequence[Ask], what: str, stop_early: bool = False) -> list[Measures]:
        """The measures of each, in order; ``what`` is said beside the progress bar."""
        todo = [ask for ask in dict.fromkeys(asks) if (ask, stop_early) not in self._known]
        tasks = [self.study.task(self.variant, ask, stop_early) for ask in todo]
        for ask, result in zip(todo, self.runner.run(tasks, f"{self.variant}: {what}") if tasks else [], strict=True):
            self._known[ask, stop_early] = result[self.variant]
        return [self._known[ask, stop_early] for ask in asks]

    def grid(
        self,
        loads: Sequence[float],
        replications: int,
        what: str,
        stop_early: bool = False,
        lengths: Sequence[int] | None = None,
    ) -> list[list[Measures]]:
        """For each load the measures of every replication; ``lengths`` are those of each load's runs, by default 1."""
        each = lengths or [1] * len(loads)
        asks = [Ask(load, r, False, n) for load, n in zip(loads, each, strict=True) for r in range(replications)]
        found = self.run(asks, what, stop_early)
        return [found[i * replications : (i + 1) * replications] for i in range(len(loads))]
