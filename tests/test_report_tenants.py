"""The report's section of tenants: the summary's own numbers, limits where they are promised, bounded in size."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import numpy as np
import pytest

from simserve import report
from simserve.fairness import has_limits
from simserve.report.comparison import all_rows
from simserve.report.content import Content, Section, page_content
from simserve.report.figure import Figure, Table
from simserve.report.style import variant_styles
from simserve.report.tenants import (
    MAX_DRAWN,
    MAX_LISTED,
    num_drawn,
    tenant_figures,
    tenant_notes,
    tenant_table,
)
from simserve.report.tenants_charts import Group, Scale, bar_chart, span_chart
from simserve.request import Tenant, Tenants
from tests.record_builders import Slo
from tests.report_builders import MANIFEST, PAGED, STATIC, run_of, skewed_table

TWO = {"static": STATIC, "paged": PAGED}
EACH = (Tenant("chat", ttft_s=1.0), Tenant("batch", e2e_s=30.0), Tenant("nobody"))


def shared_run(each: tuple[Tenant, ...] = EACH, senders: int = 2, slo: Slo | None = None) -> Any:
    """64 requests, dealt to the first tenants in turn."""
    table = skewed_table()
    owned = replace(table, tenants=Tenants(each, np.arange(len(table)) % senders))
    return run_of(TWO, owned, slo=slo or Slo())


@pytest.fixture(scope="module")
def run() -> Any:
    return shared_run()


@pytest.fixture(scope="module")
def content(run: Any) -> Content:
    return page_content(run, MANIFEST)


@pytest.fixture(scope="module")
def section(content: Content) -> Section:
    return next(each for each in content.sections if each.id == "tenants")


def test_long_names_leave_room_for_their_figures() -> None:
    """A name of a hundred characters may break in the first column, where a short one stands on one line."""
    macros = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(report.__file__).parent), autoescape=True)
    macro: Any = macros.get_template("parts.html.j2").module
    table = str(macro.table(Table(("tenant", "requests"), (("n" * 100, "1"), ("chat", "n" * 100))), "Tenants"))
    assert f'<th scope="row" class="long">{"n" * 100}</th>' in table
    assert '<th scope="row">chat</th>' in table


def parts_of(run: Any) -> tuple[list[Figure], Table]:
    """The section's figures and its table, without the rest of the page."""
    summaries = {name: variant.summary for name, variant in run.variants.items()}
    told = (variant_styles(summaries), summaries, run.workload.table.tenants, run.scenario.slo)
    return list(tenant_figures(*told)), tenant_table(*told)


def rows_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a chart that are of a variant."""
    return [row for rows in datasets(spec) for row in rows if "variant" in row]


def datasets(spec: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return list(spec.get("datasets", {}).values()) + [
        layer["data"]["values"] for layer in spec["layer"] if "values" in layer.get("data", {})
    ]


def test_without_tenants_there_is_no_section() -> None:
    """Nothing to tell, nothing in the page or in its table of all figures."""
    plain = page_content(run_of({"paged": PAGED}), MANIFEST)
    assert not [each for each in plain.sections if each.id == "tenants"]
    assert not any("Jain" in row.measure.label for row in plain.all_rows)


def test_the_section_has_a_chart_for_each_question(section: Section) -> None:
    """Three latencies, who is within limits, fairness; every chart valid Vega-Lite, every caption a sentence."""
    names = ["tenants-ttft", "tenants-tpot", "tenants-e2e", "tenants-limits", "tenants-fairness"]
    assert [figure.id for figure in section.figures] == names
    for figure in section.figures:
        alt.Chart.from_dict(figure.spec, validate=True)
        assert figure.caption.endswith(".") and not re.search(r"\bnan\b", figure.caption)


def test_spans_are_the_summarys_quantiles(run: Any, section: Section) -> None:
    """Dot and tick of each tenant and variant are p50 and p99 of summary.json, to five digits; who sent nothing has
    no row; the only limit on a TTFT is chat's."""
    spec = section.figures[0].spec
    found = {(row["of"].partition(",")[0], row["variant"]): (row["low"], row["high"]) for row in rows_of(spec)}
    assert found.keys() == {(tenant, variant) for tenant in ("chat", "batch") for variant in TWO}
    for (tenant, variant), ends in found.items():
        ttft = run.variants[variant].summary["tenants"][tenant]["ttft_s"]
        assert ends == pytest.approx((ttft["p50"], ttft["p99"]), rel=1e-4)
    limits = [row for rows in datasets(spec) for row in rows if "limit" in row]
    assert [(row["of"].partition(",")[0], row["limit"]) for row in limits] == [("chat", 1.0)] * len(limits)
    assert limits


def test_the_table_has_a_row_per_tenant_and_variant(run: Any) -> None:
    """Counts and rates as in the summary, promises in words; who was promised nothing says so."""
    table = tenant_table(
        variant_styles(TWO),
        {name: v.summary for name, v in run.variants.items()},
        Tenants(EACH, np.zeros(0, int)),
        Slo(),
    )
    rows = {row[:2]: dict(zip(table.head, row, strict=True)) for row in table.rows}
    assert list(rows) == [(tenant.name, variant) for tenant in EACH for variant in TWO]
    chat = rows["chat", "paged"]
    assert (chat["requests"], chat["limits"]) == ("32", "TTFT 1.00\u00a0s")
    assert rows["nobody", "paged"]["limits"] == "–"
    summary = run.variants["paged"].summary["tenants"]["chat"]
    assert float(chat["requests/s"]) == pytest.approx(summary["requests_per_s"], rel=5e-3)
    assert rows["nobody", "static"]["TTFT p99"] == "–"


def test_without_limits_nothing_is_said_of_them() -> None:
    """No chart of attainment, no goodput in the table or in the page's key figures; a scenario's limit brings both."""
    figures, table = parts_of(shared_run((Tenant("a"), Tenant("b"))))
    assert "tenants-limits" not in [figure.id for figure in figures]
    assert "limits" not in table.head and "goodput, requests/s" not in table.head
    figures, table = parts_of(shared_run((Tenant("a"), Tenant("b")), slo=Slo(ttft_s=2.0)))
    assert "tenants-limits" in [figure.id for figure in figures]
    assert {row[-1] for row in table.rows} == {"TTFT 2.00\u00a0s"}
    assert not has_limits(None, Slo()) and has_limits(None, Slo(e2e_s=1.0))
    assert has_limits(Tenants(EACH, np.zeros(0, int)), Slo()) and not has_limits(
        Tenants(EACH[2:], np.zeros(0, int)), Slo()
    )


def test_a_tenants_limit_alone_brings_goodput_to_the_summary(run: Any, content: Content) -> None:
    """The scenario has no SLO, its tenants have: goodput and Jain's index stand in the page's tables."""
    assert any(row.measure.path == "goodput_rps" for row in content.key_rows)
    jain = [row for row in content.all_rows if row.measure.path == "fairness.speed"]
    assert len(jain) == 1
    assert [row.measure.path for row in all_rows({n: v.summary for n, v in run.variants.items()}, True)].count(
        "fairness.slo_attainment"
    ) == 1


def test_fairness_draws_the_summarys_index(run: Any, section: Section) -> None:
    """Bars are Jain's index by what is compared; two senders can be as unequal as one half."""
    figure = section.figures[-1]
    summary = run.variants["static"].summary["fairness"]
    drawn = [row["value"] for row in rows_of(figure.spec) if row["variant"] == "static"]
    assert sorted(set(drawn)) == pytest.approx(sorted({float(f"{value:.5g}") for value in summary.values()}))
    assert "2 tenants" in figure.caption and "0.500" in figure.caption


def test_hundreds_of_tenants_stay_a_page() -> None:
    """The charts have those who send most, the table a hundred, a note says so, and the whole section stays small."""
    each = tuple(Tenant(f"t{i}", ttft_s=1.0) for i in range(300))
    figures, table = parts_of(shared_run(each, senders=10))
    drawn = {row["of"] for row in rows_of(figures[0].spec)}
    assert len(drawn) == MAX_DRAWN and len(table.rows) == 2 * MAX_LISTED
    assert tenant_notes(Tenants(each, np.zeros(0, int)), 2) == (
        f"Drawn for {MAX_DRAWN} of 300 tenants, those that send most; the table has 100, summary.json all.",
    )
    assert tenant_notes(Tenants(each[:8], np.zeros(0, int)), 2) == ()
    assert len(json.dumps([figure.spec for figure in figures])) < 100_000


@pytest.mark.parametrize(("variants", "tenants"), [(1, 8), (8, 8), (16, 4), (200, 1)])
def test_more_variants_leave_room_for_fewer_tenants(variants: int, tenants: int) -> None:
    """At most 64 rows in a chart, and always one tenant."""
    assert num_drawn(variants) == tenants


def test_rows_of_a_group_lie_under_its_heading_and_above_the_next() -> None:
    """Whatever the number of groups and variants, places ascend: heading, its rows, the next heading."""
    styles = variant_styles("abc")
    groups = [Group(f"g{i}", {style.key: (0.5, 0.9) for style in styles}, 0.7) for i in range(4)]
    spec = span_chart(groups, styles, ("p50", "p99"))
    headings = next(rows for rows in datasets(spec) if "heading" in rows[0])
    rows = list({(row["of"], row["variant"]): row["row"] for row in rows_of(spec)}.items())
    for i, heading in enumerate(headings):
        own = [place for (of, _), place in rows if of == heading["heading"]]
        following = headings[i + 1]["row"] if i + 1 < len(headings) else float("inf")
        assert heading["row"] < own[0] < own[1] < own[2] < following


def test_a_limit_far_beyond_what_was_reached_is_not_drawn() -> None:
    """It would squeeze everything else into a corner; the heading names it all the same."""
    styles = variant_styles("a")
    groups = [Group("near", {"v0": (1.0, 2.0)}, 4.0), Group("far, limit 1000 s", {"v0": (1.0, 2.0)}, 1000.0)]
    spec = span_chart(groups, styles, ("p50", "p99"))
    limits = {row["of"] for rows in datasets(spec) for row in rows if "limit" in row}
    assert limits == {"near"}


def test_spans_over_decades_have_a_logarithmic_axis_that_shows_zeros() -> None:
    """A median of 0 s beside a p99 of minutes: the domain is positive and finite, and clamps."""
    spec = span_chart([Group("g", {"v0": (0.0, 0.001), "v1": (5.0, 300.0)})], variant_styles("ab"), ("p50", "p99"))
    scale = spec["layer"][0]["encoding"]["x"]["scale"]
    assert scale["type"] == "log" and 0 < scale["domain"][0] < 0.001 and scale["domain"][1] > 300 and scale["clamp"]
    alt.Chart.from_dict(spec, validate=True)


def test_bars_begin_at_zero_and_a_missing_variant_has_none() -> None:
    """Rectangles from 0 to the share, of those who have one."""
    scale = Scale(alt.Axis(title="share"), alt.Tooltip("value:Q"))
    spec = bar_chart([Group("g", {"v1": (0.25,)})], variant_styles("ab"), scale)
    assert [(row["variant"], row["zero"], row["value"]) for row in rows_of(spec)] == [("b", 0, 0.25)]
    alt.Chart.from_dict(spec, validate=True)


def test_names_are_told_together_where_they_share_a_figure() -> None:
    """A caption of tenants whom both variants treat alike names the figure once."""
    summary = shared_run().variants["paged"].summary
    same = {"one": summary, "two": summary}
    figures = list(tenant_figures(variant_styles(same), same, Tenants(EACH[:1], np.zeros(64, int)), Slo()))
    limits = next(figure for figure in figures if figure.id == "tenants-limits")
    assert "(one and two)" in limits.caption


def test_long_names_leave_room_for_their_limits() -> None:
    """A heading is cut in the name, which the table has whole, and not in what was promised."""
    name = "a tenant whose name is longer than any heading"
    figures, table = parts_of(shared_run((Tenant(name, ttft_s=1.0),), senders=1))
    headings = {row["of"] for row in rows_of(figures[0].spec)}
    assert headings == {"a tenant whose name is…, limit 1.00\u00a0s"}
    assert table.rows[0][0] == name
