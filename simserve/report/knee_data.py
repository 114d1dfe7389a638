"""A knee document as the tables behind its charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simserve.report.study_dims import Dim, dim
from simserve.report.study_measures import Measure, dotted, interval_of, known
from simserve.report.study_words import told_load
from simserve.report.style import VariantStyle, variant_styles
from simserve.report.sweep_data import PATHS, Document
from simserve.report.words import dig


@dataclass(frozen=True)
class KneeData:
    """Read-only views of the document, computed once."""

    document: Document

    @property
    def variants(self) -> Mapping[str, Any]:
        """What was found, by variant."""
        found: Mapping[str, Any] = self.document["variants"]
        return found

    @cached_property
    def styles(self) -> list[VariantStyle]:
        """One per variant, in the document's order."""
        return variant_styles(self.variants)

    @cached_property
    def load(self) -> Measure:
        """The axis of the load, as the document words it."""
        return told_load(self.document["load"])

    @property
    def unit(self) -> str:
        """What loads are counted in; the label again where they have no unit."""
        return str(self.document["load"]["unit"] or self.document["load"]["label"])

    def points(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every point of every curve with its variant."""
        for name, variant in self.variants.items():
            for point in variant["curve"]:
                yield name, point

    @cached_property
    def measures(self) -> list[Measure]:
        """What was measured, the latency of the knee first."""
        first = dotted(self.document["metric"])
        return known([point for _, point in self.points()], dict.fromkeys((first, *PATHS)))

    @cached_property
    def load_dim(self) -> Dim:
        """The axis of the load: it holds the curves and every estimate."""
        values = [float(point["load"]) for _, point in self.points()]
        for variant in self.variants.values():
            for key in ("saturation", "knee"):
                values += [v for end in ("value", "high") if (v := dig(variant[key] or {}, end)) is not None]
        return dim(self.load, "load", values, log=False)

    @cached_property
    def dims(self) -> dict[str, Dim]:
        """An axis per measure."""
        return {m.path: dim(m, f"c{i}", self._values(m.path)) for i, m in enumerate(self.measures)}

    def rows(self) -> list[dict[str, Any]]:
        """One row per point: what charts and tooltips need of it."""
        place = {style.name: i for i, style in enumerate(self.styles)}
        rows = []
        for name, point in self.points():
            row = {
                "v": f"v{place[name]}",
                "variant": name,
                "s": place[name],
                "load": float(point["load"]),
                "g": bool(point["grows"]),
                "state": "grows" if point["grows"] else "does not grow",
            }
            for measure in self.measures:
                axis, interval = self.dims[measure.path], interval_of(point["metrics"], measure.path)
                for field, key in (("field", "value"), ("low", "low"), ("high", "high")):
                    value = dig(interval, key)
                    if value is not None:
                        floor = axis["domain"][0] if axis["scale"] == "log" and value <= 0 else value
                        row[axis[field]] = float(f"{floor:.5g}")
            rows.append(row)
        return rows

    def _values(self, path: str) -> list[float]:
        intervals = [interval_of(point["metrics"], path) for _, point in self.points()]
        found = [dig(interval, key) for interval in intervals for key in ("value", "low", "high")]
        return [value for value in found if value is not None]
