"""The page of a search for the knee: estimates with their intervals, tests, batch knees, as the document has them."""

import re

import pytest

from simserve.errors import OutputError
from simserve.report import render_knee
from simserve.report.knee_data import KneeData
from simserve.report.knee_page import knee_headline, knee_table, render_knee_page
from tests.study_documents import CLIENTS, ESTIMATED, MANIFEST, VARIANTS, interval, knee_document
from tests.study_pages import check_chart, every_chart, fields_of, head_of, numbers_in, table_rows, text_of
from tests.test_report_page import EVIL, MEGABYTE, charts_of


@pytest.fixture(scope="module")
def document():
    return knee_document()


@pytest.fixture(scope="module")
def html(document):
    return render_knee_page(document, MANIFEST)


def test_the_page_is_whole(html):
    """Title, every section in its order, provenance."""
    assert "<title>skewed64 – simserve knee</title>" in html
    wanted = ["summary", "estimates", "curves", "tests", "batch", "notes", "provenance"]
    assert re.findall(r'<section id="([\w-]+)"', html) == wanted
    assert "workload.arrivals.rate_rps" in text_of(html) and "3.11.2" in text_of(html)
    assert len(html.encode()) < 3 * MEGABYTE


def test_every_chart_is_valid_and_has_its_words(html):
    """Under each choice of what is drawn upwards; fields are the points' own or the chart's."""
    known = set(charts_of(html)["tables"]["points"])
    for name, spec in every_chart(html):
        check_chart(name, spec)
        made = {step["as"] for layer in spec.get("layer", []) for step in layer.get("transform", []) if "as" in step}
        inline = {"x", "xl", "xh", "row", "what", "color", "shape", "batch", "share"}
        assert fields_of(spec) <= known | made | inline, name
    boxes = re.findall(r'role="img" aria-label="([^"]+)" data-chart="([^"]+)"', html)
    assert sorted(name for _, name in boxes) == sorted(charts_of(html)["specs"])


def test_the_summary_is_the_document(document):
    """Saturation rate and knee with their intervals, in the order of the variants."""
    table = knee_table(KneeData(document))
    assert [row[0] for row in table.rows] == list(VARIANTS)
    for row in table.rows:
        found = document["variants"][row[0]]
        for cell, estimate in ((row[1], found["saturation"]), (row[2], found["knee"])):
            assert numbers_in(cell) == pytest.approx([estimate[key] for key in ("value", "low", "high")], rel=5.1e-3)
        assert numbers_in(row[3]) == pytest.approx([0.8], rel=1e-2)  # as it was made up


def test_the_headline_names_the_last_to_break(document):
    """The largest saturation rate, its ratio to the next, its knee."""
    words = knee_headline(KneeData(document)).replace("\u00a0", " ")
    assert words == (
        "continuous-paged keeps up to 20.0 (19.4 to 20.6) requests/s, 1.43× continuous-contiguous; latency turns "
        "up at 16.0 (14.9 to 17.1)."
    )


def test_equal_variants_are_named_together():
    """Two caches that do the same: both keep up, and the ratio is to the next one that differs."""
    words = knee_headline(KneeData(knee_document(variants={"a": 8.0, "b": 8.0, "c": 4.0}))).replace("\u00a0", " ")
    assert words.startswith("a and b keep up to 8.00 (7.76 to 8.24) requests/s, 2.00× c; latency turns up at 6.40")


def test_estimates_are_marked_on_the_curves(html, document):
    """Each panel has its variant's own knee and saturation rate as a shaded range and a rule."""
    charts = dict(every_chart(html))
    for i, name in enumerate(VARIANTS):
        layers = charts[f"curve-v{i}"]["layer"]
        ranges = [layer["data"]["values"][0] for layer in layers if layer["mark"].get("type") == "rect"]
        found = document["variants"][name]
        wanted = [{"x": e["value"], "xl": e["low"], "xh": e["high"]} for e in (found["saturation"], found["knee"])]
        assert ranges == wanted
        assert [layer["mark"]["text"][:4] for layer in layers if layer["mark"].get("type") == "text"] == [
            "satu",
            "knee",
        ]


def test_curves_hold_the_document_s_points(html, document):
    """Every load of every variant, hollow exactly where the backlog grows."""
    rows = table_rows(html, "points")
    wanted = [(n, p["load"], p["grows"]) for n, found in document["variants"].items() for p in found["curve"]]
    assert [(row["variant"], row["load"], row["g"]) for row in rows] == wanted
    field = KneeData(document).dims["e2e_s.mean"]["field"]
    values = [p["metrics"]["e2e_s.mean"]["value"] for found in document["variants"].values() for p in found["curve"]]
    assert [row[field] for row in rows] == pytest.approx(values, rel=1e-4)


def test_growth_tests_are_listed(html):
    """Two per variant: below the saturation rate the backlog does not grow, above it does."""
    section = re.search(r'<section id="tests".*?</section>', html, re.S)[0]
    assert section.count("<tr>") == 1 + 2 * len(VARIANTS)
    assert section.count("does not grow</td>") == len(VARIANTS) and section.count("&lt; 0.001") == len(VARIANTS)


def test_batch_knees_have_their_shares(html):
    """Value, interval and the share of bootstrap draws, in words and as bars; a variant without one is left out."""
    section = text_of(re.search(r'<section id="batch".*?</section>', html, re.S)[0])
    assert "8: 13 %, 16: 87 %" in section and "8 to 16" in section
    bars = charts_of(html)["specs"]["batch-shares"]["data"]["values"]
    assert {(bar["variant"], bar["batch"], bar["share"]) for bar in bars} == {
        (name, batch, share)
        for name in ("continuous-contiguous", "continuous-paged")
        for batch, share in ((8, 0.13), (16, 0.87))
    }


def test_draws_that_agree_need_no_bars():
    """One batch size in all draws: the table says it, and nothing is drawn."""
    document = knee_document()
    for found in document["variants"].values():
        found["batch_knee"] = {"value": 16, "low": 16, "high": 16, "shares": {"16": 1.0}}
    page = render_knee_page(document, MANIFEST)
    assert "batch-shares" not in charts_of(page)["specs"] and "16: 100 %" in text_of(page)


def test_what_was_not_found_is_a_dash(document):
    """No knee, no saturation, no batch knee: dashes, and charts that still are whole."""
    bare = knee_document(variants={"a": 8.0})
    bare["variants"]["a"] |= {
        "knee": {**interval(None), "range": [1, 2]},
        "saturation": {**interval(None), "checks": []},
        "batch_knee": None,
    }
    page = render_knee_page(bare, MANIFEST)
    assert "No variant was found to saturate" in text_of(page) and 'id="tests"' not in page
    for name, spec in every_chart(page):
        check_chart(name, spec)


def test_one_replication_has_no_bands():
    """Estimates without bounds are rules without a range."""
    page = render_knee_page(knee_document(n=1), MANIFEST)
    charts = charts_of(page)["specs"]
    assert not [layer for layer in charts["curve-v0"]["layer"] if layer["mark"].get("type") == "rect"]


def test_names_with_html_in_them_are_text():
    """Scenario, variants, notes and step times can hold anything; none of it becomes markup."""
    document = knee_document(variants={EVIL: 8.0, "b": 9.0})
    document |= {"scenario": EVIL, "notes": [EVIL]}
    document["variants"][EVIL]["step_time"] = {**ESTIMATED, "name": EVIL, "device": EVIL}
    page = render_knee_page(document, {EVIL: EVIL})
    bare = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "<img" not in bare and page.count("<script") == 3 and "alert(1)</" not in page
    assert re.findall(r"</span>([a-z ]+)</strong>", head_of(page)) == ["uncalibrated"]


def test_clients_have_no_requests_per_second():
    """A closed loop's load is counted in clients, in the headline and in the tables."""
    document = knee_document()
    document["load"] = CLIENTS
    words = text_of(render_knee_page(document, MANIFEST))
    assert "keeps up to 20.0 (19.4 to 20.6) clients" in words and "concurrent clients, clients" not in words


def test_the_same_document_gives_the_same_bytes_and_no_half_page(document, html, tmp_path):
    """A page depends on the document and its manifest alone; a place that cannot be written is one sentence."""
    render_knee(document, MANIFEST, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == html
    with pytest.raises(OutputError, match="cannot be written"):
        render_knee(document, MANIFEST, tmp_path / "missing" / "a.html")
