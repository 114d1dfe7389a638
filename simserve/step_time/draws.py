"""Profiles as another run might have measured them: a simulation repeated over them carries intervals of that noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simserve.step_time.monotone import non_decreasing
from simserve.step_time.no_cache import bare_forwards, no_cache_readings
from simserve.step_time.profile_schema import NoCacheTable, Profile, RepeatedSteps, Table, TableRow

_UNKNOWN_SHARED = 0.1  # of a profile that does not tell how its runs differ: the middle of what was seen on CPUs

Rows = dict[int, dict[int, npt.NDArray[np.float64]]]


class ProfileDraws:
    """Draws of the tables of ``profile``.

    Each is a bootstrap: the samples of every cell drawn anew with replacement, and what the table says (their median,
    or what was fitted to it) multiplied by how their median changed; then by a factor for the run, shared by all cells,
    and one for each cell, log-normal by the profile's noise between runs. Ratios of repeated decodes are drawn by the
    samples of their chains.
    Mixed steps are corrected as measured, since their correction is relative to the tables (an addition is scaled with
    the run).
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._prefill, self._decode = _samples(profile, "prefill"), _samples(profile, "decode")
        self._chains = _chains(profile)
        self._whole = bare_forwards(profile)
        readings = no_cache_readings(profile.samples, profile.provenance.clock)
        self._readings = {length: np.array(seconds) for length, seconds in readings.items()}
        noise = profile.noise
        self._shared = noise.shared if noise else _UNKNOWN_SHARED
        self._per_point = noise.per_point if noise else 0.0

    def draw(self, rng: np.random.Generator) -> Profile:
        """The profile with one draw of its tables; everything else, its digest too, is that of the measurement."""
        shared = float(np.exp(self._shared * rng.standard_normal()))
        prefill = self._table(self._profile.prefill, self._prefill, shared, rng)
        decode = self._table(self._profile.decode, self._decode, shared, rng)
        mixed = self._profile.mixed
        if mixed is not None and mixed.form == "added":
            scaled = tuple(tuple(value * shared for value in row) for row in mixed.values)
            mixed = mixed.model_copy(update={"values": scaled})
        tables = {"prefill": prefill, "decode": decode, "mixed": mixed, "no_cache": self._forwards(shared, rng)}
        return self._profile.model_copy(update=tables | {"repeated": self._repeated(rng)})

    def _repeated(self, rng: np.random.Generator) -> RepeatedSteps | None:
        repeated = self._profile.repeated
        if repeated is None:
            return None
        known = zip(repeated.batch_sizes, repeated.ratios, strict=True)
        drawn = tuple(ratio * _change(self._chains.get(size), rng) for size, ratio in known)
        return repeated.model_copy(update={"ratios": drawn})

    def _forwards(self, shared: float, rng: np.random.Generator) -> NoCacheTable | None:
        if self._whole is None:
            return None
        lengths, seconds = self._whole.num_tokens, []
        factors = shared * np.exp(self._per_point * rng.standard_normal(len(lengths)))
        for length, known, factor in zip(lengths, self._whole.seconds, factors, strict=True):
            seconds.append(known * float(factor * _change(self._readings.get(length), rng)))
        return NoCacheTable(num_tokens=lengths, seconds=tuple(seconds))

    def _table(self, table: Table, samples: Rows, shared: float, rng: np.random.Generator) -> Table:
        rows = []
        for row in table.rows:
            factors = shared * np.exp(self._per_point * rng.standard_normal(len(row.contexts)))
            seconds = []
            for context, known, factor in zip(row.contexts, row.seconds, factors, strict=True):
                change = _change(samples.get(row.row, {}).get(context), rng)
                seconds.append(known * float(factor * change))
            rows.append(TableRow(row=row.row, contexts=row.contexts, seconds=non_decreasing(seconds)))
        return Table(rows=tuple(rows))


def _change(cell: npt.NDArray[np.float64] | None, rng: np.random.Generator) -> float:
    """How the median of a cell's samples changes when they are drawn anew: a ratio, so that no draw of wild samples
    takes less than no time."""
    return 1.0 if cell is None else float(np.median(rng.choice(cell, len(cell))) / np.median(cell))


def _chains(profile: Profile) -> dict[int, npt.NDArray[np.float64]]:
    """Seconds of the chained steps that were fitted, by batch size; their contexts are alike but for a few tokens."""
    groups: dict[int, list[float]] = {}
    for sample in profile.repeated.samples if profile.repeated is not None else ():
        if not sample.held_out:
            groups.setdefault(sample.batch_size, []).append(sample.seconds(profile.provenance.clock))
    return {size: np.array(seconds) for size, seconds in groups.items()}


def _samples(profile: Profile, phase: str) -> Rows:
    """Seconds behind every cell of a table: the clean ones, or all where none is clean."""
    groups: dict[tuple[int, int], list[tuple[bool, float]]] = {}
    for sample in profile.samples:
        is_cell = sample.shape[4:] == (0, 0, 0.0) and (phase == "decode" or sample.batch_size == 1)
        if sample.phase == phase and is_cell and not (sample.held_out or sample.anchor or sample.session):
            row = sample.batch_size if phase == "decode" else sample.num_new_tokens
            reading = sample.dirty, sample.seconds(profile.provenance.clock)
            groups.setdefault((row, sample.num_context_tokens), []).append(reading)
    rows: Rows = {}
    for (row, context), readings in groups.items():
        clean = [seconds for dirty, seconds in readings if not dirty]
        rows.setdefault(row, {})[context] = np.array(clean or [seconds for _, seconds in readings])
    return rows
