"""The page of a sweep: its numbers are the document's, its charts are whole under every choice, and it stays small."""

import copy
import re
import time

import pytest

from simserve.errors import OutputError
from simserve.report import render_sweep, sweep_data
from simserve.report.page import vega_bundle
from simserve.report.sweep_data import MAX_POINTS, SweepData
from simserve.report.sweep_page import render_sweep_page, sweep_content
from simserve.report.sweep_sections import MAX_PANELS
from simserve.report.sweep_words import best_points, curve_table, sweep_headline
from tests.study_documents import ESTIMATED, LOAD, MANIFEST, VARIANTS, interval, sweep_document
from tests.study_pages import check_chart, every_chart, fields_of, head_of, numbers_in, table_rows, text_of
from tests.test_report_page import EVIL, MEGABYTE, charts_of

BATCH = {"engine.max_num_seqs": [8, 16, 32]}


@pytest.fixture(scope="module")
def document():
    return sweep_document()


@pytest.fixture(scope="module")
def html(document):
    return render_sweep_page(document, MANIFEST)


@pytest.fixture(scope="module")
def grid():
    return sweep_document(others=BATCH)


@pytest.fixture(scope="module")
def grid_html(grid):
    return render_sweep_page(grid, MANIFEST)


def headline(document):
    return sweep_headline(SweepData(document)).replace("\u00a0", " ")


def test_the_page_is_whole(html):
    """Title, every section in its order, model, seeds and provenance."""
    assert html.lstrip().startswith("<!doctype html>") and html.rstrip().endswith("</html>")
    assert "<title>skewed64 – simserve sweep</title>" in html
    wanted = ["summary", "curves", "load", "pareto", "notes", "points", "provenance"]
    assert re.findall(r'<section id="([\w-]+)"', html) == wanted
    text = text_of(html)
    for words in ("qwen2.5-0.5b", "42, 5 replications each", "7 to 11", "held-out error 3.1 %", "3.11.2"):
        assert words in text


def test_every_chart_has_its_place_its_words_and_its_numbers(html):
    """Each embedded chart is drawn by one box with a text alternative, and has a folded table."""
    boxes = re.findall(r'role="img" aria-label="([^"]+)" data-chart="([^"]+)"', html)
    assert sorted(name for _, name in boxes) == sorted(charts_of(html)["specs"])
    assert all(len(label) > 40 for label, _ in boxes)
    figures = re.findall(r"<figure.*?</figure>", html, re.S)
    assert len(figures) == len(boxes) and all("<details>" in figure and "<table>" in figure for figure in figures)


@pytest.mark.parametrize("others", [None, BATCH])
def test_every_chart_is_valid_vega_lite_under_every_choice(others):
    """All combinations of the controls, against the schema; none of their places is left open."""
    page = render_sweep_page(sweep_document(loads=[1.0, 7.0, 9.0], others=others), MANIFEST)
    count = 0
    for name, spec in every_chart(page):
        check_chart(name, spec)
        count += 1
    assert count > 30


def test_charts_name_only_fields_that_their_tables_have(grid_html):
    """Every field is a column of the shared points, or made by the chart itself."""
    known = set(charts_of(grid_html)["tables"]["points"]) | set(charts_of(grid_html)["tables"]["knees"])
    for name, spec in every_chart(grid_html):
        made = {step["as"] for layer in spec["layer"] for step in layer.get("transform", []) if "as" in step}
        assert fields_of(spec) <= known | made, name


def test_every_point_is_listed_with_the_document_s_numbers(html, document):
    """Each row of the list, read back: load, then value, low and high of each measure within three digits' rounding."""
    rows = dict(re.findall(r'<tr id="point-(\d+)"[^>]*>(.*?)</tr>', html, re.S))
    assert sorted(map(int, rows)) == list(range(len(document["points"])))
    for number, row in rows.items():
        point = document["points"][int(number)]
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)
        assert numbers_in(cells[0]) == [pytest.approx(point["settings"][LOAD], rel=5e-3)]
        assert cells[1].startswith(point["variant"])
        throughput = point["metrics"]["output_tokens_per_s"]
        bounds = [throughput[key] for key in ("value", "low", "high")]
        assert numbers_in(cells[2]) == pytest.approx(bounds, rel=5.1e-3)
        assert ("does not grow" in row) != point["grows"]


def test_charts_hold_the_document_s_numbers(html, document):
    """Each point's columns, by the axes that charts use: value, low and high, to five digits."""
    data = SweepData(document)
    for row in table_rows(html, "points"):
        point = document["points"][row["id"]]
        assert (row["variant"], row["load"], row["g"]) == (point["variant"], point["settings"][LOAD], point["grows"])
        for path in ("e2e_s.mean", "ttft_s.p99", "goodput_rps"):
            axis = data.dims[path]
            for field, key in (("field", "value"), ("low", "low"), ("high", "high")):
                assert row[axis[field]] == pytest.approx(point["metrics"][path][key], rel=1e-4, abs=1e-12)


def test_knees_lie_on_their_curves(html, document):
    """One per knee of the document, at its load, with the throughput between its neighbours'."""
    knees = table_rows(html, "knees")
    assert [knee["load"] for knee in knees] == [curve["knee"]["value"] for curve in document["curves"]]
    field = SweepData(document).dims["output_tokens_per_s"]["field"]
    for knee, curve in zip(knees, document["curves"], strict=True):
        assert knee[field] == pytest.approx(200 * curve["knee"]["value"], rel=1e-3)  # 200 tokens a request, all served


def test_a_link_where_there_is_a_report_and_a_command_where_there_is_none(html, document):
    """Relative to the page, named for those who hear it; the command is there to read without a script."""
    for number, point in enumerate(document["points"]):
        row = re.search(rf'<tr id="point-{number}".*?</tr>', html, re.S)[0]
        if point["report"]:
            assert f'href="{point["report"]}"' in row and "<code>" not in row
        else:
            assert f"<code>{point['command']}</code>" in row and "<a " not in row


def test_the_headline_names_the_best_and_where_curves_break(document):
    """Most tokens/s without a growing backlog: 19.7 requests/s of continuous-paged; saturation from the next load."""
    words = headline(document)
    assert words.startswith(
        "continuous-paged carries the most: 3,940 output tokens/s at 19.7 requests/s offered, 1.53×"
    )
    assert "latency turns up at 16.0 (15.0 to 17.0) and the backlog grows from 21.4 with continuous-paged" in words
    assert "the backlog grows from 9.50 with static-contiguous" in words


def test_the_best_never_has_a_growing_backlog(document):
    """However many tokens a saturated point emits."""
    assert not any(point["grows"] for point in best_points(SweepData(document)).values())
    assert next(iter(best_points(SweepData(document)))) == "continuous-paged"


def test_equal_variants_are_said_to_be_equal():
    """The same numbers: none is better, and what they share is said once."""
    words = headline(sweep_document(variants={"a": 8.0, "b": 8.0}))
    assert "; b gives as much at the same latency" in words and "with a and b." in words


def test_the_longer_answer_loses_between_equal_throughputs():
    """Far below saturation both carry the load; the one with shorter answers is named first."""
    words = headline(sweep_document(loads=[1.0, 2.0], variants={"slow": 8.0, "fast": 80.0}))
    assert words.startswith("fast carries the most") and "slow gives as much with" in words


def test_a_sweep_that_is_all_too_much_says_so():
    """No point keeps up: the headline does not call any of them carried."""
    words = headline(sweep_document(loads=[30.0, 40.0]))
    assert words.startswith("Every point of this sweep has a growing backlog; continuous-paged still gives the most")


def test_the_summary_has_a_row_per_curve(grid):
    """Settings, knee with its interval, and where the backlog grows, as in the document."""
    table = curve_table(SweepData(grid))
    assert len(table.rows) == len(grid["curves"]) == 9 and table.head[:2] == ("variant", "settings")
    for row, curve in zip(table.rows, grid["curves"], strict=True):
        knee = curve["knee"]
        assert numbers_in(row[2]) == (
            pytest.approx([knee["value"], knee["low"], knee["high"], *knee["range"]], rel=5.1e-3) if knee else []
        )
        if curve["saturated_from"] is None:
            assert row[3] == "nowhere in this range"
        else:
            assert numbers_in(row[3]) == pytest.approx([curve["saturated_from"]], rel=5e-3)


def test_other_axes_make_small_multiples_on_the_same_axes(grid_html):
    """A panel per batch limit, all with one domain, each with its own settings' points."""
    drawn: dict[str, dict] = {}
    for name, spec in every_chart(grid_html):
        drawn.setdefault(name, spec)
    panels = [drawn[f"curve-{i}"] for i in range(3)]
    assert [panel["layer"][1]["transform"][0]["filter"]["equal"] for panel in panels] == [0, 1, 2]
    domains = {str(panel["layer"][1]["encoding"]["y"]["scale"]["domain"]) for panel in panels}
    assert len(domains) == 1 and "<h3>max_num_seqs\u00a032</h3>" in grid_html


def test_many_settings_are_capped_and_counted():
    """Twenty batch limits: twelve panels and a sentence about the other eight, which stay choosable below."""
    page = render_sweep_page(
        sweep_document(loads=[1.0, 9.0], others={"engine.max_num_seqs": list(range(20))}), MANIFEST
    )
    charts = charts_of(page)
    assert len([name for name in charts["specs"] if name.startswith("curve-")]) == MAX_PANELS
    assert f"first {MAX_PANELS} of 20 settings; 8 more" in text_of(page)
    assert len(charts["controls"]["load"]["settings"]) == 20


def test_two_hundred_points_of_three_variants_at_four_settings_stay_small():
    """2,400 points: under 4 MB and 4 s of CPU, whole settings drawn and listed, the rest counted."""
    document = sweep_document(loads=[1 + 0.1 * i for i in range(200)], others={"engine.max_num_seqs": [8, 16, 32, 64]})
    vega_bundle()
    began = time.process_time()
    page = render_sweep_page(document, MANIFEST)
    assert time.process_time() - began < 4
    assert len(page.encode()) < 4 * MEGABYTE
    rows = table_rows(page, "points")
    assert len(rows) == MAX_POINTS == page.count('<tr id="point-')
    assert {row["s"] for row in rows} == {0, 1, 2}
    assert "draws and lists 1,800 of 2,400 points, those of the first 3 settings of 4" in text_of(page)


def test_one_setting_larger_than_the_page_is_cut_too(monkeypatch):
    """More points than fit in the first setting: its beginning is drawn and the page says how many are left out."""
    monkeypatch.setattr(sweep_data, "MAX_POINTS", 50)
    page = render_sweep_page(sweep_document(loads=[1 + i for i in range(20)]), MANIFEST)
    assert len(table_rows(page, "points")) == 50 and "50 of 60 points" in text_of(page)


def test_settings_alone_are_dots_with_ranges():
    """No load axis: no curves, a line per setting in every chart, and the best settings in the summary."""
    document = sweep_document(loads=[], others=BATCH)
    page = render_sweep_page(document, MANIFEST)
    assert 'id="curves"' not in page and 'id="settings"' in page
    for name, spec in every_chart(page):
        if name.startswith("setting-"):
            assert [row["settings"] for row in spec["layer"][0]["data"]["values"]] == [
                f"max_num_seqs\u00a0{value}" for value in (8, 16, 32)
            ]
            check_chart(name, spec)
    assert "best settings" in page and "carries the most: 800 output tokens/s" in text_of(page)


def test_the_front_is_the_document_s(html, document):
    """Marked points are those that the document marks; the caption counts them."""
    marked = [row["id"] for row in table_rows(html, "points") if row["p"]]
    assert marked == [i for i, point in enumerate(document["points"]) if point["pareto"]] and marked
    assert f"{len(marked)} points of 42 are beaten by no other" in text_of(html)


def test_one_replication_has_no_bars():
    """Values without bounds: no brackets in the tables, no low or high column, charts still whole."""
    document = sweep_document(loads=[1.0, 9.0], n=1)
    page = render_sweep_page(document, MANIFEST)
    assert not [name for name in charts_of(page)["tables"]["points"] if re.fullmatch(r"c\d+[lh]", name)]
    for name, spec in every_chart(page):
        check_chart(name, spec)


def test_warnings_stand_before_everything_else():
    """Uncalibrated and extrapolated, above the summary."""
    document = sweep_document(loads=[1.0, 2.0])
    document["step_times"]["continuous-paged"] = ESTIMATED
    document["points"][0]["metrics"]["extrapolated_step_share"] = interval(0.5)
    head = head_of(render_sweep_page(document, MANIFEST))
    assert re.findall(r"</span>([a-z ]+)</strong>", head) == ["uncalibrated", "extrapolated"]


def test_points_that_answer_almost_nobody_are_not_praised():
    """Latencies of who stayed: a badge and every list say so, such points are hollow, and none is the best."""
    whole = sweep_document()
    assert "no answer" not in text_of(render_sweep_page(whole, MANIFEST))
    document = copy.deepcopy(whole)
    for point in document["points"]:
        if point["variant"] == "continuous-paged" and point["settings"][LOAD] > 10:
            point["leaves_unanswered"], point["grows"], point["pareto"] = True, False, False
            point["metrics"]["unanswered_share"] = interval(0.5)
    html = render_sweep_page(document, MANIFEST)
    head = text_of(head_of(html))
    assert "unanswered" in head and "got no answer at 8 of 14 points of continuous-paged" in head
    assert text_of(html).count("does not grow, 50 % unanswered") == 8
    best = best_points(SweepData(document))["continuous-paged"]
    assert best["settings"][LOAD] <= 10
    for row, point in zip(table_rows(html, "points"), document["points"], strict=True):
        assert row["g"] == (point["grows"] or point["leaves_unanswered"])
    for point in document["points"]:
        point["leaves_unanswered"] = not point["grows"]
    assert headline(document).startswith(
        "Every point of this sweep has a growing backlog or leaves requests unanswered"
    )


def test_what_was_not_tested_is_not_said_to_grow_nowhere():
    """Too few requests, or a closed loop: table, headline and lists say so; one that was tested says nowhere."""
    document = sweep_document(loads=[1.0, 2.0, 3.0, 4.0], variants={"a": 80.0})
    assert curve_table(SweepData(document)).rows[0][2] == "nowhere in this range"
    for point in document["points"]:
        point["growth_tested"], point["growth_p"] = False, None
    assert curve_table(SweepData(document)).rows[0][2] == "not tested"
    assert "whether the backlog grows is not tested" in headline(document)
    html = render_sweep_page(document, MANIFEST)
    assert [row["state"] for row in table_rows(html, "points")] == ["not tested"] * 4
    assert "grows nowhere" not in text_of(html) and text_of(html).count("not tested") >= 6


def test_a_curve_without_saturation_says_why_it_has_no_knee():
    """Nothing bends for good below saturation; with it, the loads looked over are told."""
    short, whole = sweep_document(loads=[1.0, 2.0], variants={"a": 8.0}), sweep_document(variants={"a": 8.0})
    assert "knee none: saturation is not reached" in text_of(render_sweep_page(short, MANIFEST))
    assert curve_table(SweepData(short)).rows[0][1] == "none: saturation is not reached"
    assert curve_table(SweepData(whole)).rows[0][1].replace("\u00a0", " ").endswith(", of 1.00 to 23.1")


def test_bands_are_not_drawn_below_nothing():
    """Student's t knows no sign: a bound below 0 is drawn at the foot of the axis, and told as it is."""
    document = sweep_document()
    for point in document["points"]:
        for each in point["metrics"].values():
            if each["low"] is not None:
                each["low"] = -each["value"]
    data = SweepData(document)
    lows = {dim["low"]: dim["domain"][0] for dim in data.dims.values()}
    assert all(row[low] == foot for row in data.rows() for low, foot in lows.items() if low in row and row[low] <= 0)
    assert all(row[low] >= 0 for row in data.rows() for low in lows if low in row)


def test_names_with_html_in_them_are_text():
    """Scenario, variants, settings, notes, commands and manifest can hold anything; none of it becomes markup."""
    document = sweep_document(loads=[1.0, 2.0], others={EVIL: [EVIL, "b"]}, variants={EVIL: 8.0, "b": 9.0})
    document |= {"scenario": EVIL, "model": EVIL, "notes": [EVIL]}
    for point in document["points"]:
        point |= {"command": EVIL, "report": None}
    page = render_sweep_page(document, {EVIL: {EVIL: EVIL}})
    bare = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "<img" not in bare and page.count("<script") == 3 and "alert(1)</" not in page
    assert "&lt;img src=x onerror=alert(2)&gt;" in bare
    assert {row["variant"] for row in table_rows(page, "points")} == {EVIL, "b"}
    for name, spec in every_chart(page):
        check_chart(name, spec)


def test_a_report_elsewhere_is_not_linked():
    """An address with a scheme is dropped, and the command stands in its place."""
    document = sweep_document(loads=[1.0])
    document["points"][0]["report"] = "javascript:alert(1)"
    page = render_sweep_page(document, MANIFEST)
    assert "javascript:alert" not in page and document["points"][0]["command"] in page


def test_missing_numbers_are_dashes():
    """A latency that no run measured (null everywhere) has no chart; one point without it has a dash."""
    document = sweep_document(loads=[1.0, 2.0])
    for i, point in enumerate(document["points"]):
        point["metrics"] |= {f"itl_s.{name}": interval(None) for name in ("mean", "p50", "p90", "p95", "p99")}
        if i == 0:
            point["metrics"]["e2e_s.mean"] = interval(None)
    page = render_sweep_page(document, MANIFEST)
    assert 'data-chart="load-itl_s"' not in page
    assert not re.search(r"\bnan\b", text_of(page).lower()) and "None" not in text_of(page)


def test_nothing_measured_is_a_page_too():
    """No point at all, or points without numbers: said, not raised."""
    empty = sweep_document(loads=[1.0])
    empty |= {"points": [], "curves": []}
    assert "No point of this sweep was measured." in text_of(render_sweep_page(empty, MANIFEST))
    bare = sweep_document(loads=[1.0])
    for point in bare["points"]:
        point["metrics"] = {}
    for curve in bare["curves"]:
        curve["knee"] = None
    assert "No point of this sweep was measured." in text_of(render_sweep_page(bare, MANIFEST))


def test_the_same_document_gives_the_same_bytes_and_no_half_page(document, html, tmp_path):
    """A page depends on the document and its manifest alone; a place that cannot be written is one sentence."""
    render_sweep(document, MANIFEST, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == html
    with pytest.raises(OutputError, match="cannot be written"):
        render_sweep(document, MANIFEST, tmp_path / "missing" / "a.html")


def test_styles_follow_the_order_of_the_scenario(document):
    """The first variant has the first colour, whichever carries most."""
    content = sweep_content(SweepData(document), MANIFEST)
    assert [style.name for style in content.styles] == list(VARIANTS)


def test_nothing_is_loaded_from_outside(html):
    """Outside the scripts there is no address with a scheme, no import, and no source."""
    bare = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert not re.search(r"https?://|@import|\bsrc\s*=|url\((?!#)", bare)


@pytest.mark.parametrize(
    ("values", "is_line"), [([16, 64, 256, 1024], True), ([16, 64], False), (["a", "b", "c", "d"], False)]
)
def test_one_axis_of_numbers_is_drawn_along(values, is_line):
    """Without a load: lines from four numbers on, each point at its value; fewer, or words, are dots with names."""
    page = render_sweep_page(sweep_document(loads=[], others={"workload.output_tokens.fixed": values}), MANIFEST)
    spec = dict(every_chart(page))["setting-output_tokens_per_s"]
    marks = {layer["mark"]["type"] for layer in spec["layer"]}
    assert ("line" in marks) is is_line
    assert sorted({row["load"] for row in table_rows(page, "points")}) == (values if is_line else [0.0])
    if is_line:
        titles = {
            layer["encoding"]["x"]["axis"]["title"] for layer in spec["layer"] if "axis" in layer["encoding"]["x"]
        }
        assert titles == {"output_tokens.fixed, logarithmic"}
    for name, chart in every_chart(page):
        check_chart(name, chart)
