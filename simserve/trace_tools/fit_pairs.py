"""Which prompts have which answers: a rank correlation where it is enough, else a table of classes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn
from simserve.scenario.workload_models import GeneratedWorkload
from simserve.trace_tools.measures import rank_correlation
from simserve.workload.length_pairs import even_table, length_pairs
from simserve.workload.streams import stream

ENOUGH = 0.03  # how far the tokens held by steps may be from the trace's, as a share
PER_CELL, MAX_CLASSES = 20, 12
NUM_DRAWN = 20_000

FloatColumn = npt.NDArray[np.float64]
Section = dict[str, Any]


def going_together(prompts: IntColumn, outputs: IntColumn, lengths: Section) -> Section:
    """``length_correlation`` where chance would not make it; ``length_table`` where that leaves what requests hold in a
    cache further from the trace than 3 % and than chance does, and the table brings it nearer; neither where there is
    nothing to say."""
    found = rank_correlation(prompts, outputs)
    if found is None:
        return {}
    by_chance = 2 / max(1, len(prompts) - 1) ** 0.5  # two standard errors where there is none
    section: Section = {} if abs(found) < by_chance else {"length_correlation": round(found, 3)}
    each = held_tokens(prompts, outputs)
    enough = max(ENOUGH, 2 * float(each.std() / each.mean()) / len(each) ** 0.5)
    num_classes = min(MAX_CLASSES, int((len(prompts) / PER_CELL) ** 0.5))
    distance = _distance(lengths | section, float(each.mean()))
    if distance <= enough or num_classes < 2:
        return section
    table = {"length_table": np.round(class_table(prompts, outputs, num_classes), 4).tolist()}
    return table if _distance(lengths | table, float(each.mean())) < distance else section


def held_tokens(prompts: npt.NDArray[Any], outputs: npt.NDArray[Any]) -> FloatColumn:
    """What each request asks of a cache: tokens held, added up over the steps of its answer. It hangs on which prompts
    have which answers, which a rank correlation alone does not settle."""
    answers = outputs.astype(np.float64)
    held: FloatColumn = answers * (prompts + (answers + 1) / 2)
    return held


def _distance(section: Section, expected: float) -> float:
    """How far the tokens held by steps of many draws are from the trace's, as a share."""
    config = GeneratedWorkload.model_validate({"num_requests": 1, "concurrency": 1, **section})
    drawn = length_pairs(config, NUM_DRAWN, partial(stream, 0))
    return abs(float(held_tokens(drawn.prompts, drawn.outputs).mean()) / expected - 1)


def class_table(prompts: IntColumn, outputs: IntColumn, num_classes: int) -> FloatColumn:
    """For each class of prompts the share of each class of answers, all classes of one size; equal lengths are parted
    by a coin."""
    rng = np.random.default_rng(0)
    rows, columns = (_classes(each, num_classes, rng) for each in (prompts, outputs))
    counts = np.bincount(rows * num_classes + columns, minlength=num_classes**2).astype(np.float64)
    return even_table(counts.reshape(num_classes, num_classes))


def _classes(tokens: IntColumn, num_classes: int, rng: np.random.Generator) -> IntColumn:
    ranks = np.empty(len(tokens), np.int64)
    ranks[np.lexsort((rng.random(len(tokens)), tokens))] = np.arange(len(tokens))
    return ranks * num_classes // len(tokens)
