"""SLOs as people type them: ``ttft_p99=1s``, ``tpot_mean=50ms``, ``attainment=99%``, ``tenant_attainment=99%``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simserve.errors import InputError
from simserve.scenario.messages import did_you_mean, printable, shown

LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue_time")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
ATTAINMENT, TENANT_ATTAINMENT = "attainment", "tenant_attainment"
SHARES = {ATTAINMENT: "slo_attainment", TENANT_ATTAINMENT: "lowest_slo_attainment"}  # their measures
TENANTS_DEFAULT = f"{TENANT_ATTAINMENT}=99%"
EXAMPLE = "such as ttft_p99=1s, tpot_mean=50ms or attainment=99%"
WORST = 1e3  # what a figure that is infinite counts as, in units of its limit, so that means of it exist
LEAST = 1e-6
MOST_UNANSWERED = 0.01  # of the requests, where a mean still counts

_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0}
_VALUE = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)\s*([a-zµ%]*)\s*")


class SloError(InputError):
    """An SLO that cannot be understood, or that the scenario gives nothing to hold against."""


class SloTargets(Protocol):
    """A scenario's own ``slo:``: seconds, or null."""

    @property
    def ttft_s(self) -> float | None: ...
    @property
    def tpot_s(self) -> float | None: ...
    @property
    def e2e_s(self) -> float | None: ...


@dataclass(frozen=True)
class Slo:
    """One limit. ``metric`` is dotted, as in the measures of a run (``ttft_s.p99``, ``slo_attainment``); ``limit`` is
    in seconds, or a share that must be reached; ``text`` is what the user would type."""

    metric: str
    limit: float
    text: str

    def ratio(self, measures: Mapping[str, Any]) -> float:
        """How much of the limit a run uses: at most 1 when it holds the SLO, between ``LEAST`` and ``WORST``.

        Requests that were turned away or timed out are infinitely late (but have a TTFT if they got their first token),
        so a quantile that reaches them is; the same holds for a run that was stopped because its backlog grew. Who
        cancelled left of his own accord, and counts in what he got. A mean is that of the answered ones, and infinite
        once more than 1 % are not (one would do it otherwise). Attainment uses the share that may fail:
        (1 − attained) / (1 − wanted). A run with nothing to measure (TPOT of answers of one token) holds the SLO.
        """
        used = self._used(measures)
        return WORST if used is None else min(WORST, max(LEAST, used))

    def _used(self, measures: Mapping[str, Any]) -> float | None:
        if (measures.get("backlog") or {}).get("stopped_early"):
            return None
        if self.metric in SHARES.values():
            attained = measures.get(self.metric)
            return None if attained is None else (1 - attained) / (1 - self.limit)
        name, _, statistic = self.metric.partition(".")
        own = measures["slo_quantiles"].get(name)
        lost = measures["unanswered_share"] or 0.0 if own is None else own["lost_share"]
        if statistic == "mean":
            value, is_late = measures[name]["mean"] if own is None else own["answered_mean"], lost > MOST_UNANSWERED
        else:
            value = (own or measures[name])[statistic]
            is_late = value is None and lost > 0
        return None if is_late else (value or 0.0) / self.limit

    def lost_share(self, measures: Mapping[str, Any]) -> float:
        """The share of a run's requests that were never answered, as this SLO counts them; 0 for attainment."""
        own = measures["slo_quantiles"].get(self.metric.partition(".")[0])
        return 0.0 if own is None else float(own["lost_share"])


def parse_slo(text: str) -> Slo:
    """The SLO of ``METRIC=VALUE``; a bare number is seconds. Raises SloError, one sentence with the remedy."""
    name, equals, value = (part.strip() for part in text.partition("="))
    where = printable(f"--slo {text}")
    if not equals or not name or not value:
        raise SloError(f"{where}: must have the form METRIC=VALUE, {EXAMPLE}")
    if (share := name.removeprefix("slo_")) in SHARES:
        return Slo(SHARES[share], _share(value, where), f"{share}={value}")
    latency, _, statistic = name.replace("_s.", "_").rpartition("_")
    if latency not in LATENCIES or statistic not in STATISTICS:
        known = [f"{each}_{stat}" for each in LATENCIES for stat in STATISTICS]
        raise SloError(f"{where}: unknown metric {shown(name)}; {did_you_mean(name, [*known, *SHARES])}")
    return Slo(f"{latency}_s.{statistic}", _seconds(value, where), f"{latency}_{statistic}={value}")


def parse_slos(
    texts: Sequence[str], targets: SloTargets, tenants: Sequence[SloTargets] = ()
) -> tuple[tuple[Slo, ...], str | None]:
    """The SLOs to hold, and a note when they are the scenario's own, which count at p99, or those of its ``tenants``,
    each of which 99 % of its own requests must keep.

    Raises SloError when neither the command nor the scenario names any, when one metric stands twice, or when an
    attainment has nothing to attain.
    """
    own = _limits(targets)
    if not texts:
        return _of_the_scenario(own, any(map(_limits, tenants)))
    slos = [parse_slo(text) for text in texts]
    metrics = [slo.metric for slo in slos]
    for slo in slos:
        if metrics.count(slo.metric) > 1:
            raise SloError(printable(f"--slo {slo.text}: must name each metric once; give only the strictest"))
        if slo.metric in SHARES.values() and not own and not any(map(_limits, tenants)):
            raise SloError(printable(f"--slo {slo.text}: needs the scenario's slo: to attain; give slo: {{ttft_s: …}}"))
        if slo.metric == SHARES[TENANT_ATTAINMENT] and not tenants:
            rule = f"needs workload.tenants or a trace's column tenant; for all requests give {ATTAINMENT}=…"
            raise SloError(printable(f"--slo {slo.text}: {rule}"))
    return tuple(slos), None


def _limits(targets: SloTargets) -> dict[str, float]:
    names = ("ttft_s", "tpot_s", "e2e_s")
    return {name: limit for name in names if (limit := getattr(targets, name)) is not None}


def _of_the_scenario(own: Mapping[str, float], tenants_have_limits: bool) -> tuple[tuple[Slo, ...], str]:
    if tenants_have_limits:
        return (
            parse_slo(TENANTS_DEFAULT),
        ), f"no --slo: each tenant's limits for 99 % of its requests ({TENANTS_DEFAULT})"
    if not own:
        raise SloError(f"--slo: must be given where the scenario has no slo: of its own, {EXAMPLE}")
    slos = [Slo(f"{name}.p99", limit, f"{name.removesuffix('_s')}_p99={limit:g}s") for name, limit in own.items()]
    return tuple(slos), f"no --slo: the scenario's own, held at p99 ({', '.join(slo.text for slo in slos)})"


def _seconds(value: str, where: str) -> float:
    match = _VALUE.fullmatch(value)
    if match is None or match[2] not in _SECONDS:
        raise SloError(f"{where}: must be a time such as 1s, 50ms or 0.05 (seconds) (got {shown(value)})")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not 1e-9 <= seconds <= 1e9:
        raise SloError(f"{where}: must be between 1 ns and 10⁹ s (got {shown(value)})")
    return seconds


def _share(value: str, where: str) -> float:
    match = _VALUE.fullmatch(value)
    if match is None or match[2] not in ("", "%"):
        raise SloError(f"{where}: must be a share such as 99% or 0.99 (got {shown(value)})")
    share = float(match[1]) / (100.0 if match[2] else 1.0)
    if not 0 < share < 1:
        raise SloError(f"{where}: must be above 0 and below 100% (got {shown(value)}); 99.9% is nearly all")
    return share
