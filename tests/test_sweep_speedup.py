"""Where speculation pays: the break-even of paired ratios, and the section of a sweep's page that draws it."""

import copy
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.report.sweep_page import render_sweep_page
from simserve.sweep.speedup import break_even, speedup_notes
from tests import browser
from tests.study_documents import MANIFEST, interval, sweep_document
from tests.study_pages import check_chart, every_chart, numbers_in, text_of
from tests.test_report_page import EVIL

ALPHA = "engine.speculation.acceptance"
XS = (0.1, 0.3, 0.5, 0.7, 0.9)


def theory(alpha, gamma, cost):
    """Tokens per pass over decode steps per pass (Leviathan, Kalman, Matias; ICML 2023, theorem 3.8)."""
    return (1 - alpha ** (gamma + 1)) / (1 - alpha) / (gamma * cost + 1)


def curve(variant, gamma, others=None):
    """A speculating variant that does as the formula says, with the break-even between two of its points."""
    points = [{"x": x, **interval(theory(x, gamma, 0.1)), "formula": theory(x, gamma, 0.1)} for x in XS]
    found = break_even(XS, np.array([[theory(x, gamma, 0.1) for x in XS]] * 5))
    return {"variant": variant, "settings": others or {}, "points": points, "break_even": found}


def document(others=None):
    """A sweep over acceptance with a plain variant and two that speculate."""
    made = sweep_document(
        loads=[], others={ALPHA: list(XS), **(others or {})}, variants={"plain": 8, "two": 9, "eight": 9}
    )
    each = [{key: value} for key, values in (others or {}).items() for value in values] or [{}]
    curves = [curve(name, gamma, one) for one in each for name, gamma in (("two", 2), ("eight", 8))]
    made["speedups"] = {"baseline": "plain", "axis": ALPHA, "measure": "tpot_s.mean", "curves": curves}
    return made


@pytest.fixture(scope="module")
def html():
    return render_sweep_page(document(), MANIFEST)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.11, 0.89), st.floats(0.2, 5), st.booleans(), st.integers(1, 6))
def test_the_break_even_of_a_straight_line_is_its_root(root, slope, rises, num):
    """Whatever the points between which it lies; it pays on the side where the ratio is above 1."""
    sign = 1 if rises else -1
    found = break_even(XS, np.array([[1 + sign * slope * (x - root) for x in XS]] * num))
    assert found["value"] == pytest.approx(root, abs=1e-9)
    assert found["pays"] == ("above" if rises else "below")
    if num == 1:
        assert found["low"] is None
    else:
        assert found["low"] == pytest.approx(root) and found["high"] == pytest.approx(root)


@pytest.mark.parametrize("level", [0.9, 1.1])
def test_a_curve_on_one_side_of_one_has_no_break_even(level):
    """Always slower or always faster."""
    assert break_even(XS, np.full((4, 5), level)) is None


def test_the_interval_of_a_break_even_covers_the_truth():
    """Noisy lines through (0.5, 1): intervals of 95 % by resampling twelve replications hold 0.5 in most of 200 draws
    (percentiles of so few are narrow: the binomial's lower end for 88 % is 83 %)."""
    rng, held = np.random.default_rng(1), 0
    for draw in range(200):
        noisy = (
            1 + 0.8 * (np.array(XS) - 0.5) + 0.05 * rng.standard_normal((12, 1)) + 0.01 * rng.standard_normal((12, 5))
        )
        found = break_even(XS, noisy, draw)
        held += found["low"] <= 0.5 <= found["high"]
    assert 0.83 * 200 <= held < 200


def test_no_interval_where_many_resamples_never_cross():
    """Two replications, one always above: half of the resampled curves have no crossing, so there is no interval."""
    found = break_even((0.0, 1.0), np.array([[0.7, 0.95], [0.8, 1.2]]))
    assert found["value"] == pytest.approx(0.25 / 0.325) and (found["low"], found["high"]) == (None, None)


def test_notes_say_where_each_variant_pays():
    """Eight drafted tokens need more acceptance than two; the two crossings are the formula's, between its points."""
    two, eight = speedup_notes(document()["speedups"])
    assert two.startswith("speculation of two against plain: it pays above acceptance 0.1")
    assert eight.startswith("speculation of eight against plain: it pays above acceptance 0.4")
    assert list(speedup_notes(None)) == []


def test_the_section_stands_first_and_says_where_it_pays(html):
    """Its table has the break-even between 0.3 (0.79×) and 0.5 (1.11×) of eight drafted tokens, and the extremes."""
    sections = re.findall(r'<section id="([\w-]+)"', html)
    assert sections[:2] == ["summary", "speculation"]
    part = re.search(r'<section id="speculation".*?</section>', html, re.S)[0]
    row = re.search(r'<tr><th scope="row">eight</th>(.*?)</tr>', part, re.S)[1]
    at, pays, least, most = re.findall(r"<td>(.*?)</td>", row)
    assert 0.41 < numbers_in(at)[0] < 0.45
    assert pays == "above it"
    assert float(least[:-1]) == pytest.approx(theory(0.1, 8, 0.1), abs=5e-3)
    assert most == "3.40×"  # α 0.9, γ 8, c 0.1, as the chapters have it
    assert "0.79×" not in text_of(row)


def test_every_chart_is_valid_vega_lite(html):
    """The schema, with one panel and with several."""
    for page in (html, render_sweep_page(document({"engine.max_num_seqs": [1, 64]}), MANIFEST)):
        charts = [(name, spec) for name, spec in every_chart(page) if name.startswith("speedup")]
        assert charts
        for name, spec in charts:
            check_chart(name, spec)


def test_the_chart_draws_the_document(html):
    """Every point with its bounds and its formula, and a mark at each crossing on the line at 1."""
    spec = dict(every_chart(html))["speedup-0"]
    assert len(spec["data"]["values"]) == 10
    for row in spec["data"]["values"]:
        gamma = {"two": 2, "eight": 8}[row["variant"]]
        assert row["y"] == row["f"] == pytest.approx(theory(row["x"], gamma, 0.1), rel=1e-4)
        assert row["yl"] < row["y"] < row["yh"]
    marks = next(layer["data"]["values"] for layer in spec["layer"] if layer["mark"].get("shape") == "diamond")
    assert [mark["y"] for mark in marks] == [1.0, 1.0] and marks[0]["x"] < marks[1]["x"]


def test_without_speculation_there_is_no_section():
    """Older documents have no such block, and a sweep of plain variants has null."""
    plain = sweep_document()
    for made in (plain, {**plain, "speedups": None}):
        assert 'id="speculation"' not in render_sweep_page(made, MANIFEST)


def test_names_with_html_in_them_are_text():
    """A variant's name becomes no markup."""
    made = copy.deepcopy(document())
    for part in (*made["points"], *made["speedups"]["curves"]):
        part["variant"] = part["variant"].replace("two", EVIL)
    made["step_times"][EVIL] = made["step_times"].pop("two")
    html = render_sweep_page(made, MANIFEST)
    assert "<img" not in re.sub(r"<script.*?</script>", "", html, flags=re.S)


@browser.needed
def test_in_a_browser_it_is_drawn_on_a_phone_too(html, tmp_path):
    """Silent, both lines and the marks there, no wider than the screen."""
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    with browser.launched() as chromium, browser.visit(chromium, path, browser.PHONE, dark=True) as visit:
        assert visit.complaints == []
        assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= 360
        box = visit.page.query_selector("[data-chart=speedup-0]")
        assert len(box.query_selector_all(".mark-line path")) >= 4
        assert len(box.query_selector_all(".mark-symbol path")) >= 10
