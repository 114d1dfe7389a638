"""From the later steps of chains to ratios: what a decode takes that follows steps of its own decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from calibrate.grid import Point
from simserve.step_time.profile_schema import RepeatedSteps, Sample, Table
from simserve.step_time.repeated import Ratios
from simserve.step_time.surface import Surface


def fit_ratios(medians: Mapping[Point, float], decode: Table) -> Ratios | None:
    """The ratio of chained decodes to those of the table at the same batch size and context, the median over each batch
    size; ``None`` without any chain. Chains held out are left out.

    Both sides are medians over the same processes, in whose order they were mixed, so that what a process or a moment
    does to all steps does not show.
    """
    surface = Surface(decode)
    found: dict[int, list[float]] = {}
    for point, seconds in medians.items():
        if point.num_repeats and not point.held_out:
            of_table = surface.curve(point.batch_size).at(point.num_context_tokens)
            found.setdefault(point.batch_size, []).append(seconds / of_table)
    if not found:
        return None
    sizes = tuple(sorted(found))
    return Ratios(sizes, tuple(median(found[size]) for size in sizes))


def fit_repeated(medians: Mapping[Point, float], decode: Table, samples: Sequence[Sample]) -> RepeatedSteps | None:
    """As ``fit_ratios``, with the ``samples`` of chains that are behind it: what a profile holds."""
    ratios = fit_ratios(medians, decode)
    if ratios is None:
        return None
    chained = tuple(sample for sample in samples if sample.num_repeats)
    return RepeatedSteps(batch_sizes=ratios.batch_sizes, ratios=ratios.ratios, samples=chained)
