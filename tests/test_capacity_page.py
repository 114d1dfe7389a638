"""The page of a search for capacity: its table, SLO curves and replicas are the document's, for any document."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import OutputError
from simserve.report import render_capacity
from simserve.report.capacity_charts import LEAST, MOST, Slo, gpus_chart
from simserve.report.capacity_data import CapacityData
from simserve.report.capacity_page import capacity_headline, capacity_table, render_capacity_page
from simserve.report.study_measures import Measure
from simserve.report.style import variant_styles
from tests.study_documents import CLIENTS, MANIFEST, VARIANTS, capacity_document, interval
from tests.study_pages import check_chart, every_chart, numbers_in, text_of
from tests.test_report_page import EVIL, MEGABYTE, charts_of

(STYLE,) = variant_styles(["a"])


@pytest.fixture(scope="module")
def document():
    return capacity_document()


@pytest.fixture(scope="module")
def html(document):
    return render_capacity_page(document, MANIFEST)


def column(table, head):
    """The cells of a column by (the beginning of) its head."""
    (index,) = [i for i, name in enumerate(table.head) if name.startswith(head)]
    return [row[index] for row in table.rows]


def test_the_page_is_whole(html):
    """Title, every section in its order, SLOs and price in the header."""
    assert "<title>skewed64 – simserve capacity</title>" in html
    wanted = ["summary", "ranking", "slos", "target", "notes", "provenance"]
    assert re.findall(r'<section id="([\w-]+)"', html) == wanted
    text = text_of(html)
    for words in ("TTFT p99 at most 1.5 s; TPOT p99 at most 400 ms", "100 requests/s", "2.50 per GPU-hour", "135"):
        assert words in text
    assert len(html.encode()) < 3 * MEGABYTE


def test_every_chart_is_valid_and_has_its_words_and_numbers(html):
    """Against the schema; each with a text alternative and a folded table."""
    for name, spec in every_chart(html):
        check_chart(name, spec)
    figures = re.findall(r"<figure.*?</figure>", html, re.S)
    assert len(figures) == len(charts_of(html)["specs"]) == 8
    assert all("<table>" in figure and 'role="img" aria-label=' in figure for figure in figures)


def test_the_table_is_the_document(document):
    """Rows in the document's order, cheapest first, each number within three digits' rounding."""
    table = capacity_table(CapacityData(document))
    assert column(table, "variant") == ["continuous-paged", "continuous-contiguous", "static-contiguous"]
    assert "settings" not in table.head  # nobody varied any
    for head, key in (("capacity", "capacity"), ("cost per M output", "cost_per_million_output_tokens")):
        for cell, row in zip(column(table, head), document["rows"], strict=True):
            assert numbers_in(cell) == pytest.approx([row[key][end] for end in ("value", "low", "high")], rel=5.1e-3)
    for cell, row in zip(column(table, "replicas"), document["rows"], strict=True):
        assert numbers_in(cell) == [row["replicas"][end] for end in ("value", "low", "high")]
    assert column(table, "limited by") == ["growing backlog", "TTFT p99", "TTFT p99"]


def test_the_headline_is_the_first_row(document):
    """Cheapest: its capacity, limit, cost and replicas."""
    words = capacity_headline(CapacityData(document)).replace("\u00a0", " ")
    assert words == (
        "continuous-paged costs the least: 17.0 (16.3 to 17.7) requests/s within every SLO, limited by a growing "
        "backlog, at 0.204 (0.196 to 0.212) per million output tokens; 100 requests/s need 6 (6 to 7) replicas."
    )


def test_without_a_price_the_largest_capacity_comes_first():
    """No cost, no target: neither columns nor charts of them, and the order is that of capacity."""
    document = capacity_document(price=None, target=None)
    table = capacity_table(CapacityData(document))
    assert not [head for head in table.head if head.startswith(("cost", "replicas"))]
    assert capacity_headline(CapacityData(document)).startswith("continuous-paged carries the most")
    page = render_capacity_page(document, MANIFEST)
    assert [name for name in charts_of(page)["specs"] if name.startswith("rank-")] == ["rank-capacity"]
    assert "GPUs needed" in str(charts_of(page)["specs"]["target-gpus"])


def test_slo_curves_are_statistics_over_limits(html, document):
    """Each row's points, by SLO: 1 at the limit, the interval beside it, hollow where the backlog grows."""
    specs = charts_of(html)["specs"]
    for i, row in enumerate(document["rows"]):
        drawn = {(one["load"], one["slo"]): one for one in specs[f"slo-{i}"]["data"]["values"]}
        for point in row["curve"]:
            for slo in document["slos"]:
                one = drawn[point["load"], slo["text"]]
                figure = point["metrics"][slo["metric"]]
                bounds = [figure[end] / slo["limit"] for end in ("value", "low", "high")]
                assert [one[key] for key in ("y", "yl", "yh")] == pytest.approx(bounds, rel=1e-4)
                assert one["g"] == point["grows"]


def test_the_capacity_is_shaded_on_the_slo_curves(html, document):
    """The range of the row's load, and the line of the limit at 1."""
    for i, row in enumerate(document["rows"]):
        layers = charts_of(html)["specs"][f"slo-{i}"]["layer"]
        (shaded,) = [layer for layer in layers if layer["mark"].get("type") == "rect"]
        load = row["load"]
        assert shaded["data"]["values"] == [{"x": load["value"], "xl": load["low"], "xh": load["high"]}]
        assert [{"y": 1.0}] in [layer.get("data", {}).get("values") for layer in layers]


@given(st.floats(1e-9, 1e9), st.floats(1e-3, 1e3))
def test_a_share_of_a_limit_is_above_one_exactly_when_the_slo_is_broken(value, limit):
    """For times: value / limit, held between what can be drawn; for attainment, which must be reached, the share of
    failures that is used up."""
    used = Slo("k", "ttft_s.p99", limit, "", STYLE).used(value)
    assert LEAST <= used <= MOST
    assert used == pytest.approx(min(MOST, max(LEAST, value / limit)), rel=1e-4)


@pytest.mark.parametrize(("attained", "used"), [(0.99, 1.0), (1.0, LEAST), (0.98, 2.0), (0.995, 0.5)])
def test_attainment_counts_failures(attained, used):
    """99 % wanted: 1 % may fail, so 98 % uses twice the limit."""
    assert Slo("k", "slo_attainment", 0.99, "", STYLE).used(attained) == pytest.approx(used, rel=1e-4)


def test_nothing_measured_uses_nothing():
    """No figure, no share."""
    assert Slo("k", "ttft_s.p99", 1.0, "", STYLE).used(None) is None


def test_replicas_are_the_target_over_the_capacity_rounded_up(document):
    """The staircase at every rate: ceil(rate / capacity) replicas times GPUs times price, and its range."""
    row = CapacityData(document).rows[0]
    spec = gpus_chart([row], Measure("y", "cost per hour"), 2.5, 100.0)
    found = row.row["capacity"]
    assert len(spec["data"]["values"]) > 100
    for step in spec["data"]["values"]:
        for key, end in (("y", "value"), ("yl", "high"), ("yh", "low")):
            whole = step[key] / (2.5 * 2)
            assert whole == round(whole) and (whole - 1) * found[end] <= step["target"] * (1 + 1e-4)
            assert step["target"] <= whole * found[end] * (1 + 1e-4)


def test_the_staircase_meets_the_document_at_the_target(html, document):
    """At the target rate the drawn cost is the document's cost per hour."""
    values = charts_of(html)["specs"]["target-gpus"]["data"]["values"]
    for row in document["rows"]:
        (step,) = [one for one in values if one["name"] == row["variant"] and one["target"] == 100.0]
        assert step["y"] == pytest.approx(row["cost_per_hour"])
        assert math.ceil(100 / row["capacity"]["value"]) == row["replicas"]["value"]


def test_settings_are_rows_of_their_own():
    """Variants at three batch limits: nine rows, named, drawn in the order of the summary; one staircase a variant."""
    document = capacity_document(settings=[{"engine.max_num_seqs": n} for n in (8, 16, 32)])
    page = render_capacity_page(document, MANIFEST)
    assert len(capacity_table(CapacityData(document)).rows) == 9
    spec = charts_of(page)["specs"]["rank-capacity"]
    names = [row["row"].replace("\u00a0", " ") for row in spec["layer"][0]["data"]["values"]]
    assert names[0] == "continuous-paged, max_num_seqs 32" and len(names) == 9
    assert {one["v"] for one in charts_of(page)["specs"]["target-gpus"]["data"]["values"]} == {"v0", "v1", "v2"}


def test_a_single_row_is_said_once():
    """One variant: the smallest and the largest are the same row."""
    text = text_of(render_capacity_page(capacity_document(variants={"only": 8.0}), MANIFEST))
    assert "capacity, requests/s: 6.80 (6.53 to 7.07) with only." in text


def test_many_rows_are_capped_and_counted():
    """Sixty rows: the table holds all, charts the first ones, and the page says so."""
    document = capacity_document(settings=[{"engine.max_num_seqs": n} for n in range(20)])
    page = render_capacity_page(document, MANIFEST)
    specs = charts_of(page)["specs"]
    assert len([name for name in specs if name.startswith("slo-")]) == 12
    assert "first 12 of 60 rows" in text_of(page) and "first 40 of 60 rows" in text_of(page)
    assert len(capacity_table(CapacityData(document)).rows) == 60 and len(page.encode()) < 3 * MEGABYTE


def test_no_capacity_is_said_with_its_reason(document):
    """A row whose SLO fails everywhere: dashes, its reason in the notes; no row left: the headline says so."""
    one = capacity_document(variants={"a": 8.0})
    one["rows"][0] |= {
        "capacity": interval(None),
        "load": interval(None),
        "replicas": None,
        "cost_per_million_output_tokens": None,
        "cost_per_million_tokens": None,
        "cost_per_hour": None,
        "reason": "ttft_p99=1s fails even at 0.1 requests/s: 3 times its limit",
    }
    page = render_capacity_page(one, MANIFEST)
    text = text_of(page)
    assert "No variant holds every SLO" in text and "a: ttft_p99=1s fails even at 0.1" in text
    for name, spec in every_chart(page):
        check_chart(name, spec)


def test_a_load_that_is_no_rate_stands_beside_the_capacity():
    """A trace's scale, or clients: a column of its own, and the axis of the SLO curves."""
    document = capacity_document()
    document["load"] = CLIENTS
    table = capacity_table(CapacityData(document))
    assert "concurrent clients" in table.head
    spec = charts_of(render_capacity_page(document, MANIFEST))["specs"]["slo-0"]
    assert "concurrent clients" in str(spec["layer"][-1]["encoding"]["x"])


def test_names_with_html_in_them_are_text():
    """Scenario, variants, settings, SLOs, notes and reasons can hold anything; none of it becomes markup."""
    document = capacity_document(variants={EVIL: 8.0, "b": 9.0}, settings=[{EVIL: EVIL}])
    document |= {"scenario": EVIL, "notes": [EVIL]}
    document["slos"][0]["text"] = EVIL
    document["rows"][0] |= {"reason": EVIL, "limited_by": EVIL}
    page = render_capacity_page(document, {EVIL: EVIL})
    bare = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "<img" not in bare and page.count("<script") == 3 and "alert(1)</" not in page
    assert "&lt;img src=x onerror=alert(2)&gt;" in bare


def test_the_same_document_gives_the_same_bytes_and_no_half_page(document, html, tmp_path):
    """A page depends on the document and its manifest alone; a place that cannot be written is one sentence."""
    render_capacity(document, MANIFEST, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == html
    with pytest.raises(OutputError, match="cannot be written"):
        render_capacity(document, MANIFEST, tmp_path / "missing" / "a.html")


def test_each_variant_keeps_one_colour(html, document):
    """In every chart a variant has the colour of the legend."""
    styles = {style.name: style.color for style in CapacityData(document).styles}
    assert set(styles) == set(VARIANTS)
    for name in ("rank-capacity", "rank-replicas"):
        for row in charts_of(html)["specs"][name]["data"]["values"]:
            assert row["color"] == styles[row["row"]]
