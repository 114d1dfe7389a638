"""How long a recorded run's decode steps really took, by the number of sequences, beside what a scenario predicts:

    python -m tests.validation.recorded_tail SCENARIO requests.jsonl step_time.operators=DIR workload.trace=FILE

Once the last answer has begun, every step gives every sequence a token: who ends when tells how many decode, their
contexts, and that a whole number of steps lies between two ends. Which number: steps of about as many decodes take the
predicted time times one ratio, so the right one makes all their gaps whole; answers that began in one step end as many
steps apart as they differ in tokens, unless one was preempted; and the one that began last takes all its steps but one.
The ratios say where a prediction is wrong; nothing of the product reads them.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from simserve.recorded.read import read_recorded
from simserve.recorded.run import RecordedRun
from simserve.request import Batch, IntColumn
from simserve.scenario import load_scenario
from simserve.simulate import prepare
from simserve.step_time.stretch import NS_PER_S, StepTime

BORDERS = (3, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 256)  # decodes up to which a ratio holds
RATIOS = np.arange(0.9, 1.141, 0.005)
STEADY = 0.12  # steps by which a gap may miss a whole number
PREEMPTED = 9.0  # misfit of a pair of which one surely was


@dataclass(frozen=True)
class Tail:
    """Who was still decoding when the last answer began at ``begin_ns``; the last to end comes first."""

    begin_ns: int
    prompts: IntColumn
    outputs: IntColumn
    first_ns: IntColumn
    last_ns: IntColumn

    @classmethod
    def of(cls, run: RecordedRun) -> Tail:
        begin = int(run.first_token_ns.max())
        late = np.flatnonzero(run.last_token_ns > begin)
        late = late[np.argsort(-run.last_token_ns[late], kind="stable")]
        table = run.table
        columns = (table.num_prompt_tokens, table.num_output_tokens, run.first_token_ns, run.last_token_ns)
        return cls(begin, *(column[late] for column in columns))


@dataclass(frozen=True)
class Gap:
    """Between two ends: ``num_steps`` of ``num_decodes`` each; ``off``: by how many steps it misses a whole number."""

    num_decodes: int
    num_steps: int
    measured_s: float
    predicted_s: float
    off: float


def gaps(tail: Tail, model: StepTime, ratios: Sequence[float]) -> tuple[list[Gap], list[int]]:
    """Every gap, the last first, and of each sequence how many steps before the last of all it ended."""
    found: list[Gap] = []
    ended: list[int] = []
    steps, last = 0, len(tail.last_ns)
    for i in range(last):
        ended.append(steps)
        earlier = int(tail.last_ns[i + 1]) if i + 1 < last else tail.begin_ns
        if earlier == tail.last_ns[i]:
            continue
        seconds = (int(tail.last_ns[i]) - earlier) / NS_PER_S
        contexts = tail.prompts[: i + 1] + tail.outputs[: i + 1] - 2 - (steps - np.array(ended))
        ratio = ratios[bisect_left(BORDERS, i + 1)]
        one = ratio * _predicted(model, contexts, 0)
        one = ratio * _predicted(model, contexts, round(seconds / one) // 2)
        number = max(1, round(seconds / one))
        found.append(Gap(i + 1, number, seconds, number * one / ratio, seconds / one - number))
        steps += number
    return found, ended


def _predicted(model: StepTime, contexts: IntColumn, steps_before: int) -> float:
    """Seconds of the step that many before the one over ``contexts``."""
    n = len(contexts)
    total, longest = int(contexts.sum()) - n * steps_before, int(contexts.max()) - steps_before
    return model.ramp(Batch((), n, total, max_decode_context=longest), 0).first_s


def uneven(found: Sequence[Gap]) -> float:
    """How far gaps are from whole numbers of steps."""
    return sum((gap.off / STEADY) ** 2 for gap in found)


def apart(tail: Tail, found: Sequence[Gap], ended: Sequence[int]) -> float:
    """How far pairs that began together are from ending as far apart as their lengths say; the answer that began last
    had its first token where the tail begins."""
    steps = sum(gap.num_steps for gap in found)
    ends = [*zip(tail.first_ns.tolist(), tail.outputs.tolist(), ended, strict=True), (tail.begin_ns, 1, steps)]
    off = (one[2] - two[2] - (two[1] - one[1]) for one, two in combinations(ends, 2) if one[0] == two[0])
    return sum(4 * min(each * each, PREEMPTED) for each in off)


def count(tail: Tail, model: StepTime) -> list[Gap]:
    """The gaps at the ratios that fit best, tried one after another: first by whole gaps alone, then by pairs too."""
    ratios = [1.0] * (len(BORDERS) + 1)
    used = sorted({bisect_left(BORDERS, n + 1) for n in range(len(tail.last_ns))})

    def misfit(trial: Sequence[float], pairs: bool) -> float:
        found, ended = gaps(tail, model, trial)
        return uneven(found) + (apart(tail, found, ended) if pairs else 0.0)

    for pairs in (False, True, True):
        for k in used:
            trials = [[*ratios[:k], float(ratio), *ratios[k + 1 :]] for ratio in RATIOS]
            ratios = min(trials, key=lambda trial: misfit(trial, pairs))
    return gaps(tail, model, ratios)[0]


def errors(found: Sequence[Gap]) -> dict[tuple[int, int], tuple[int, float, float]]:
    """By least and most decodes: steps, and the mean of one in seconds as measured and as predicted."""
    table = {}
    for low, high in pairwise((0, *BORDERS)):
        part = [gap for gap in found if low < gap.num_decodes <= high]
        if part:
            steps = sum(gap.num_steps for gap in part)
            table[low + 1, high] = (
                steps,
                sum(gap.measured_s for gap in part) / steps,
                sum(gap.predicted_s for gap in part) / steps,
            )
    return table


def main() -> None:
    scenario, measured, *overrides = sys.argv[1:]
    prepared = prepare(load_scenario(scenario, overrides))
    model = next(iter(prepared.parts.values())).step_time
    print("decodes   steps  measured, ms  predicted, ms    error")
    for (low, high), (steps, real_s, predicted_s) in errors(
        count(Tail.of(read_recorded(Path(measured))), model)
    ).items():
        share = f"{100 * (predicted_s / real_s - 1):+6.1f} %"
        print(f"{low:3d}-{high:<3d} {steps:7d} {1e3 * real_s:13.2f} {1e3 * predicted_s:14.2f} {share}")


if __name__ == "__main__":
    main()
