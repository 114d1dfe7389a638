"""What each tenant got of the shared engine, variant by variant, beside what it was promised; and how equal that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from simserve.fairness import has_limits
from simserve.report.figure import Figure, Table, number_tip, share_axis, share_tip
from simserve.report.style import VariantStyle
from simserve.report.tenants_charts import Group, Scale, bar_chart, span_chart
from simserve.report.words import NOTHING, count, dig, duration, joined, names_by_text, number, plural, share
from simserve.request import Tenant, Tenants

MAX_DRAWN = 8  # tenants in a chart; those who send most
MAX_ROWS = 64  # in a chart: with many variants fewer tenants are drawn
MAX_LISTED = 100  # in the table
MAX_LISTED_OPEN = 16  # rows of the table that need no click
MAX_LETTERS = 24  # of a name in a heading; the table has it whole
MAX_NAMED = 3  # in a caption, and different figures of each
LATENCIES = {
    "ttft_s": ("Time to first token (TTFT) by tenant", "first tokens come within"),
    "tpot_s": ("Time per output token (TPOT) by tenant", "requests have a mean gap between tokens of at most"),
    "e2e_s": ("Whole answer (E2E) by tenant", "answers are complete within"),
}
COMPARED = {  # of ``fairness`` in summary.json: its name in a chart, and what it asks
    "speed": ("speed: output tokens per second of E2E", "does everybody wait equally long for a token?"),
    "slo_attainment": ("requests within limits", "are promises kept to everybody alike?"),
    "served_share": ("output tokens got of those asked for", "is anybody turned away more than others?"),
    "output_tokens_per_s": ("output tokens per second", "does everybody get as much, whatever was asked for?"),
}
INTRO = (
    "Who shares the engine, what each got, and what it was promised. A tenant's limits are its own, or else the "
    "scenario's; its rates are over the whole run, so that they add up to it. Rows stand in the order of the variants."
)
Summaries = Mapping[str, Mapping[str, Any]]


class Limits(NamedTuple):
    """What is asked of a tenant's requests, seconds: its own limit, or else the scenario's, or none."""

    tenant: Tenant
    slo: object

    def of(self, name: str) -> float | None:
        """The limit of a latency."""
        own: float | None = getattr(self.tenant, name)
        return getattr(self.slo, name, None) if own is None else own

    def words(self) -> str:
        """``TTFT 1.00 s, E2E 20.0 s``, or a dash."""
        asked = {name.removesuffix("_s").upper(): self.of(name) for name in LATENCIES}
        return ", ".join(f"{name} {duration(limit)}" for name, limit in asked.items() if limit is not None) or NOTHING


def tenant_figures(
    styles: Sequence[VariantStyle], summaries: Summaries, tenants: Tenants, slo: object
) -> Iterator[Figure]:
    """Latencies by tenant with their limits, the share within them, and Jain's index."""
    shown = _largest(summaries, tenants, slo, num_drawn(len(styles)))
    for name in LATENCIES:
        figure = _latency(name, shown, styles, summaries)
        if figure is not None:
            yield figure
    if has_limits(tenants, slo):
        yield _attainment(shown, styles, summaries)
    yield _fairness(styles, summaries)


def tenant_table(styles: Sequence[VariantStyle], summaries: Summaries, tenants: Tenants, slo: object) -> Table:
    """A row per tenant and variant; what nothing is asked of has no goodput."""
    limited = has_limits(tenants, slo)
    head: tuple[str, ...] = ("tenant", "variant", "requests", "finished", "requests/s", "output tokens/s")
    head += tuple(f"{word} {end}" for word in ("TTFT", "TPOT", "E2E") for end in ("p50", "p99"))
    head += ("goodput, requests/s", "within limits", "limits") if limited else ()
    rows = []
    for limits in _largest(summaries, tenants, slo, MAX_LISTED):
        for style in styles:
            found = summaries[style.name]["tenants"][limits.tenant.name]
            row = [limits.tenant.name, style.name]
            row += [count(dig(found, key)) for key in ("num_requests", "num_finished")]
            row += [number(dig(found, key)) for key in ("requests_per_s", "output_tokens_per_s")]
            row += [duration(dig(found, f"{name}.{end}")) for name in LATENCIES for end in ("p50", "p99")]
            if limited:
                row += [number(dig(found, "goodput_rps")), share(dig(found, "slo_attainment")), limits.words()]
            rows.append(tuple(row))
    return Table(head, tuple(rows))


def num_drawn(num_variants: int) -> int:
    """How many tenants fit into a chart."""
    return min(MAX_DRAWN, max(1, MAX_ROWS // num_variants))


def tenant_notes(tenants: Tenants, num_variants: int) -> tuple[str, ...]:
    """Who is left out."""
    n, drawn = len(tenants.each), num_drawn(num_variants)
    if n <= drawn:
        return ()
    listed = f"; the table has {MAX_LISTED}, summary.json all" if n > MAX_LISTED else ""
    return (f"Drawn for {drawn} of {n:,} tenants, those that send most{listed}.",)


def _largest(summaries: Summaries, tenants: Tenants, slo: object, limit: int) -> list[Limits]:
    """Those who send most, in their own order."""
    sent = next(iter(summaries.values()))["tenants"]
    by_size = sorted(tenants.each, key=lambda tenant: -sent[tenant.name]["num_requests"])
    kept = {tenant.name for tenant in by_size[:limit]}
    return [Limits(tenant, slo) for tenant in tenants.each if tenant.name in kept]


def _latency(name: str, shown: Sequence[Limits], styles: Sequence[VariantStyle], summaries: Summaries) -> Figure | None:
    title, words = LATENCIES[name]
    groups, texts = [], []
    for limits in shown:
        ends = {style: _ends(summaries[style.name]["tenants"][limits.tenant.name], name) for style in styles}
        known = {style: pair for style, pair in ends.items() if pair is not None}
        if not known:
            continue
        groups.append(Group(_heading(limits, name), {s.key: pair for s, pair in known.items()}, limits.of(name)))
        reached = {style.name: duration(high) for style, (_, high) in known.items()}
        texts.append(f"{limits.tenant.name} {_told(reached)}")
    if not groups:
        return None
    caption = f"99 of 100 {words}: {_listed(texts)}. Dots are medians, ticks the p99, dashed lines limits."
    spec = span_chart(groups, styles, ("p50", "p99"))
    return Figure(f"tenants-{name.removesuffix('_s')}", title, caption, spec)


def _ends(found: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    low, high = dig(found, f"{name}.p50"), dig(found, f"{name}.p99")
    return None if low is None or high is None else (low, high)


def _heading(limits: Limits, name: str) -> str:
    limit, who = limits.of(name), _short(limits.tenant.name)
    return who if limit is None else f"{who}, limit {duration(limit)}"


def _short(name: str) -> str:
    """A name that leaves room for more words in a heading."""
    return name if len(name) <= MAX_LETTERS else f"{name[: MAX_LETTERS - 1].rstrip()}…"


def _attainment(shown: Sequence[Limits], styles: Sequence[VariantStyle], summaries: Summaries) -> Figure:
    """Who is asked for nothing is within it as soon as it is answered."""
    groups, texts = [], []
    for limits in shown:
        name = limits.tenant.name
        found = {style: dig(summaries[style.name]["tenants"][name], "slo_attainment") for style in styles}
        known = {style: value for style, value in found.items() if value is not None}
        groups.append(Group(f"{_short(name)} ({limits.words()})", {s.key: (value,) for s, value in known.items()}))
        texts.append(f"{name} {_told({style.name: share(value) for style, value in known.items()})}")
    scale = Scale(share_axis("requests within all of their limits", grid=True), share_tip("value", "within limits"))
    caption = f"Requests that were answered within all of their limits: {_listed(texts)}."
    return Figure("tenants-limits", "Within limits", caption, bar_chart(groups, styles, scale))


def _fairness(styles: Sequence[VariantStyle], summaries: Summaries) -> Figure:
    groups, rows = [], []
    for key, (label, question) in COMPARED.items():
        found = {style: dig(summaries[style.name], f"fairness.{key}") for style in styles}
        groups.append(Group(label, {s.key: (value,) for s, value in found.items() if value is not None}))
        rows.append((label, question, *(_index(value) for value in found.values())))
    senders = sum(1 for each in next(iter(summaries.values()))["tenants"].values() if each["num_requests"])
    worst = number(1 / senders) if senders else number(None)
    caption = (
        f"Jain's index of {plural(senders, 'tenant')}: 1 where all get the same, {worst} where one gets everything. "
        "What is compared decides: equal waiting for a token is one thing, promises kept to all alike another."
    )
    axis = alt.Axis(title="Jain's index", format=".1f", tickCount=5, grid=True)
    spec = bar_chart(groups, styles, Scale(axis, number_tip("value", "Jain's index")))
    table = Table(("compared", "the question", *(style.name for style in styles)), tuple(rows))
    return Figure("tenants-fairness", "Fairness", caption, spec, table)


def _index(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def _told(texts: Mapping[str, str]) -> str:
    """``1 s (a and b), 2 s (c)``: variants that share a text together; a single one goes without saying."""
    if len(texts) == 1:
        return next(iter(texts.values()))
    names = names_by_text(texts)
    parts = [f"{text} ({joined(who)})" for text, who in list(names.items())[:MAX_NAMED]]
    return ", ".join(parts + ["…"] * (len(names) > MAX_NAMED))


def _listed(texts: Sequence[str]) -> str:
    more = ", and others as drawn" if len(texts) > MAX_NAMED else ""
    return "; ".join(texts[:MAX_NAMED]) + more
