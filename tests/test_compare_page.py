"""The page of a comparison: what it says, in which order, that its charts are sound, and how large it gets."""

import json
import math
import re

import altair as alt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.compare import compare_runs, load_run
from simserve.compare.curves import MAX_POINTS, scatter
from simserve.compare.pairing import pair_variants
from simserve.errors import OutputError
from simserve.report import render_comparison
from simserve.report.compare_charts import ratio_domain, ratio_ticks
from simserve.report.compare_content import comparison_content
from simserve.report.compare_page import render_comparison_page
from simserve.report.compare_words import interval_text, ratio_rows, value_of_key
from tests.compare_builders import SCENARIO, ar1, requests_frame, write_run
from tests.test_report_page import EVIL, charts_of

MANIFEST = {"kind": "simserve compare", "command": "simserve compare a b", "started": "2026-01-01", "a": {}, "b": {}}
MEGABYTE = 1 << 20


def frame_of(mean=1.0, n=600, seed=0, **options):
    return requests_frame(ar1(n, 0.7, np.random.default_rng(seed), mean, 0.3), seed, **options)


def document_of(home, a, b, scenario_b=None, **manifest_b):
    """Two run folders and their comparison."""
    first = load_run(write_run(home / "base", a))
    second = load_run(write_run(home / "other", b, scenario_b, **manifest_b))
    return compare_runs(first, second, pair_variants(first, second))


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """The same requests twice as fast to their first token, with 16 slots instead of 8."""
    frame = frame_of()
    scenario = json.loads(json.dumps(SCENARIO))
    scenario["engine"]["max_num_seqs"] = 16
    scenario["workload"]["output_tokens"]["values"] = list(range(100, 164))
    return document_of(
        tmp_path_factory.mktemp("runs"), {"x": frame}, {"x": frame.assign(ttft_s=frame.ttft_s / 2)}, scenario
    )


@pytest.fixture(scope="module")
def html(document):
    return render_comparison_page(document, MANIFEST)


def text_of(html):
    """What a reader sees, without scripts and tags."""
    return re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style).*?</\1>", "", html, flags=re.S))


def test_what_differs_comes_before_what_changed(html):
    """Keys of the scenario with both values, long lists abridged, before any ratio."""
    page = text_of(html)
    assert page.index("engine.max_num_seqs") < page.index("TTFT, mean")
    assert "(64 values)" in page and "What differs" in page
    sections = re.findall(r'<section id="([\w-]+)"', html)
    assert sections == ["summary", "pair-0", "method", "provenance"]


def test_the_table_holds_every_measure_with_ratio_interval_and_words(document, html):
    """The rows of the section's table are those of the document, cell by cell."""
    section = html[html.index('<section id="pair-0"') : html.index('<section id="method"')]
    table = section[section.index("<tbody>") : section.index("</tbody>")]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
    found = {cells[0]: cells[1:] for cells in rows}
    assert list(found.values()) == [list(row[1:]) for row in ratio_rows(document["pairs"][0]).values()]
    assert found["TTFT, mean"][2:] == ["0.50×", "0.50 to 0.50×", "B is better"]
    assert found["TPOT, p50"][2:] == ["1.00×", "1.00 to 1.00×", "the same"]
    assert found["ITL, p99"][2:] == ["1.00×", "–", ""] and found["requests finished"][:2] == ["600", "600"]


def test_the_headline_says_what_changed(document):
    """Half the mean TTFT; where nothing clearly changed it says so."""
    content = comparison_content(document, MANIFEST)
    assert "0.50× the mean TTFT (0.50 to 0.50)" in content.headline and content.name == "base against other"
    same = json.loads(json.dumps(document))
    for metric in same["pairs"][0]["metrics"].values():
        metric["verdict"] = "unclear"
    assert comparison_content(same, MANIFEST).headline == "No measure clearly differs between A and B."


def test_every_chart_has_its_place_and_is_valid_vega_lite(html):
    """Ratios, two distributions and two scatters, each with its words, all sound by Altair's schema."""
    specs = charts_of(html)["specs"]
    boxes = re.findall(r'role="img" aria-label="([^"]+)" data-chart="([\w-]+)"', html)
    assert sorted(name for _, name in boxes) == sorted(specs)
    assert len(specs) == 5 and all(len(label) > 30 for label, _ in boxes)
    for spec in specs.values():
        alt.Chart.from_dict(spec, validate=True)


def test_the_ratio_chart_holds_the_intervals(document, html):
    """A row per measure with a ratio; its bar from bound to bound, its mark at the ratio; a cross without interval."""
    spec = charts_of(html)["specs"]["ratios-0"]
    rows = {row["label"]: row for row in max(spec["datasets"].values(), key=len)}
    metrics = document["pairs"][0]["metrics"]
    assert len(rows) == sum(metric["ratio"] is not None for metric in metrics.values())
    ttft = rows["TTFT, p90"]
    assert (ttft["from"], ttft["ratio"], ttft["to"]) == pytest.approx((0.5, 0.5, 0.5))
    assert ttft["color"] != rows["TPOT, mean"]["color"]
    assert rows["ITL, p99"]["shape"] == "cross" and not rows["ITL, p99"]["bounded"]
    assert [row for layer in spec["layer"] for row in [layer["encoding"]["x"]["scale"]["type"]]] == ["log"] * 3


@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=8))
def test_the_axis_of_ratios_shows_1(ratios):
    """Whatever the ratios: 1 is inside and a tick, two to twelve ticks, all inside the ends."""
    low, high = ratio_domain([{"ratio": ratio, "from": 0.0, "to": math.inf} for ratio in ratios])
    ticks = ratio_ticks(low, high)
    assert low < 1 < high and 1 in ticks and 2 <= len(ticks) <= 12
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)


def test_unpaired_requests_have_no_scatter_and_a_warning(tmp_path):
    """Other arrivals: no chart of request against request, a badge, and how each was resampled."""
    html = render_comparison_page(document_of(tmp_path, {"x": frame_of()}, {"x": frame_of(2.0, 500, 3)}), MANIFEST)
    assert sorted(charts_of(html)["specs"]) == ["curve-0-e2e_s", "curve-0-ttft_s", "ratios-0"]
    assert "different requests" in html and "each run is resampled by itself" in html


def test_badges_for_versions_and_unanswered_requests(tmp_path):
    """What makes a comparison unfair stands at the top."""
    status = np.where(np.arange(600) % 10 == 0, "rejected", "finished")
    document = document_of(tmp_path, {"x": frame_of()}, {"x": frame_of(status=status)}, simserve_version="0.2.0")
    document["pairs"][0]["step_time"]["a"]["calibrated"] = False
    html = render_comparison_page(document, MANIFEST)
    head = html[html.index("<body>") : html.index("<main")]
    labels = re.findall(r"</span>([a-z ]+)</strong>", head)
    assert labels == ["uncalibrated", "different versions", "unanswered requests"]
    assert "B 60" in head


def test_many_variants_have_a_section_each_and_the_lonely_are_named(tmp_path):
    """Ten pairs: eight with charts, all with tables; variants without a partner are listed."""
    frames = {f"v{i}": frame_of(1 + i / 10, 60) for i in range(10)}
    document = document_of(tmp_path, {**frames, "only-a": frame_of(n=60)}, {**frames, "only-b": frame_of(n=60)})
    html = render_comparison_page(document, MANIFEST)
    assert len(re.findall(r'<section id="pair-\d+"', html)) == 10
    assert len([name for name in charts_of(html)["specs"] if name.startswith("ratios")]) == 8
    assert "Only in A: only-a." in html and "Only in B: only-b." in html


def test_names_with_html_in_them_are_text(tmp_path):
    """Variants, scenario keys and values can hold anything; none of it becomes markup."""
    scenario = {**SCENARIO, "name": EVIL, "model": EVIL, EVIL: EVIL}
    html = render_comparison_page(document_of(tmp_path, {EVIL: frame_of()}, {EVIL: frame_of(2.0)}, scenario), {})
    assert html.count("<script") == 3 and "<img" not in re.sub(r"<script.*?</script>", "", html, flags=re.S)


def test_a_large_run_stays_small(tmp_path):
    """200,000 requests in both: scatters become squares, and the page is under 2 MB."""
    rng = np.random.default_rng(0)
    a = requests_frame(rng.lognormal(size=200_000))
    document = document_of(tmp_path, {"x": a}, {"x": a.assign(ttft_s=a.ttft_s * rng.lognormal(0, 0.2, len(a)))})
    html = render_comparison_page(document, MANIFEST)
    assert len(html.encode()) < 2 * MEGABYTE
    points = document["pairs"][0]["curves"]["ttft_s"]["points"]
    assert len(points) < 48 * 48 and sum(n for *_, n in points) == 200_000


@given(st.integers(0, 3000), st.floats(0.01, 2))
def test_no_request_is_lost_in_a_scatter(n, spread):
    """Points or squares: their counts add up, and each square's middle lies in the range of the values."""
    rng = np.random.default_rng(n)
    a, b = np.exp(spread * rng.normal(size=(2, n)))
    points = scatter(a, b)
    assert sum(count for *_, count in points) == n and len(points) <= max(MAX_POINTS, 48 * 48)
    if n:
        low, high = min(a.min(), b.min()), max(a.max(), b.max())
        assert all(low * 0.999 <= value <= high * 1.001 for x, y, _ in points for value in (x, y))


def test_requests_without_an_answer_in_one_run_are_no_point():
    """NaN in either, and times of zero, which a logarithmic axis cannot show."""
    assert scatter(np.array([1.0, np.nan, 2.0, 0.0]), np.array([3.0, 1.0, np.nan, 1.0])) == [[1.0, 3.0, 1.0]]


def test_the_same_document_gives_the_same_bytes(document, tmp_path):
    """A page depends on the document and the manifest alone."""
    for name in ("a.html", "b.html"):
        render_comparison(document, MANIFEST, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_an_unwritable_place_is_one_sentence(document, tmp_path):
    """OutputError, not a traceback."""
    with pytest.raises(OutputError, match=r"compare\.html: cannot be written"):
        render_comparison(document, MANIFEST, tmp_path / "missing" / "compare.html")


@pytest.mark.parametrize("n", [0, 1])
def test_runs_of_nothing_have_a_page_too(tmp_path, n):
    """No requests, or one: a page with what there is, and no chart that cannot be drawn."""
    document = document_of(tmp_path, {"x": requests_frame(np.ones(n))}, {"x": requests_frame(np.ones(n))})
    html = render_comparison_page(document, MANIFEST)
    for spec in charts_of(html)["specs"].values():
        alt.Chart.from_dict(spec, validate=True)
    assert "No measure clearly differs" in html


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.1, 1.25, "1.10 to 1.25×"),
        (2.0, None, "2.00× or more"),
        (None, None, "–"),
        (0.0, 0.5, "0 to 0.50×"),
        (0.0, None, "any"),
    ],
)
def test_intervals_in_words(low, high, expected):
    """Both bounds, one, or a dash."""
    assert interval_text({"low": low, "high": high}) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.003, 1.02, "1.003 to 1.02×"), (0.99, 0.99996, "0.99 to 0.99996×"), (1.0, 1.02, "1.00 to 1.02×")],
)
def test_a_bound_beside_one_is_not_printed_as_one(low, high, expected):
    """An interval that leaves out 1 must look so: "B is worse" beside "1.00 to 1.02×" would contradict itself."""
    assert interval_text({"low": low, "high": high}) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": 8}, "8"),
        ({}, "not there"),
        ({"a": None}, "null"),
        ({"a": True}, "true"),
        ({"a": []}, "none"),
        ({"a": [1, 2]}, "1, 2"),
        ({"a": "x" * 100}, "x" * 59 + "…"),
        ({"a": list(range(100))}, "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1… (100 values)"),
    ],
)
def test_values_of_keys_in_words(value, expected):
    """As YAML would write them, long ones cut."""
    assert value_of_key(value, "a") == expected
