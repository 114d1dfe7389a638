"""The page of a comparison in a real browser: drawn, silent, offline, in both themes and on a phone."""

import numpy as np
import pytest

from simserve.report import render_comparison
from tests import browser
from tests.test_compare_page import EVIL, MANIFEST, document_of, frame_of

pytestmark = browser.needed
FEW = 60


@pytest.fixture(scope="module")
def chromium():
    with browser.launched() as running:
        yield running


@pytest.fixture(scope="module")
def page_of_two(tmp_path_factory):
    """Two pairs: one that got faster for all, one of many requests that changed at random."""
    home = tmp_path_factory.mktemp("runs")
    few, many = frame_of(n=FEW), frame_of(n=1500)
    noise = np.random.default_rng(1).lognormal(0, 0.5, 1500)
    document = document_of(
        home,
        {"few": few, "many": many},
        {"few": few.assign(ttft_s=few.ttft_s / 2), "many": many.assign(ttft_s=many.ttft_s * noise)},
    )
    path = home / "compare.html"
    render_comparison(document, MANIFEST, path)
    return path


@pytest.fixture(scope="module")
def desk(chromium, page_of_two):
    with browser.visit(chromium, page_of_two) as visit:
        yield visit


def test_nothing_is_said_or_loaded(desk, page_of_two):
    """No message on the console, no request but the file."""
    assert desk.complaints == [] and desk.requests == [page_of_two.resolve().as_uri()]


def test_every_chart_is_drawn_with_marks_in_it(desk):
    """Ratios, two distributions, two scatters for each pair; each of some size, with something in it."""
    boxes = desk.page.query_selector_all("[data-chart]")
    assert len(boxes) == 10
    for box in boxes:
        name, size = box.get_attribute("data-chart"), box.query_selector("svg").bounding_box()
        assert size["width"] > 200 and size["height"] > 100, name
        assert box.query_selector(".mark-line path, .mark-symbol path"), name


def test_the_scatter_has_a_point_per_request_or_fewer_squares(desk):
    """60 requests are 60 points; 1,500 share squares."""
    count = {
        pair: len(desk.page.query_selector_all(f"[data-chart=scatter-{pair}-ttft_s] .mark-symbol path"))
        for pair in (0, 1)
    }
    assert count[0] == FEW and 100 < count[1] < 1500


def test_1_is_marked_and_better_lies_on_its_side(desk):
    """Halved TTFTs lie well left of the line at 1, unchanged TPOTs on it; measures stand in the table's order."""
    box = desk.page.query_selector("[data-chart=ratios-0]")
    line = box.query_selector(".mark-rule.role-mark line").bounding_box()["x"]
    marks = [mark.bounding_box() for mark in box.query_selector_all(".mark-symbol path")]
    labels = desk.page.eval_on_selector_all(
        "[data-chart=ratios-0] .role-axis-label text", "all => all.map(one => one.textContent)"
    )
    measures = [text for text in labels if not text.endswith("×")]
    centres = {name: mark["x"] + mark["width"] / 2 - line for name, mark in zip(measures, marks, strict=True)}
    assert measures[5:9] == ["TTFT, mean", "TTFT, p50", "TTFT, p90", "TTFT, p99"]
    assert centres["TTFT, mean"] < -100 and abs(centres["TPOT, mean"]) < 2


def test_a_tooltip_tells_the_ratio(desk):
    """Pointing at a mark names the measure, both values, the ratio and what it means."""
    mark = desk.page.query_selector("[data-chart=ratios-0] .mark-symbol path")
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    desk.page.mouse.move(x - 3, y)
    desk.page.mouse.move(x, y, steps=2)
    desk.page.wait_for_selector("#vg-tooltip-element.visible", timeout=5_000)
    text = desk.page.inner_text("#vg-tooltip-element")
    assert "output tokens/s" in text and "×" in text


def test_names_with_html_in_them_are_shown_as_text(chromium, tmp_path):
    """No dialog opens and nothing is loaded, whatever a variant is called."""
    path = tmp_path / "compare.html"
    render_comparison(document_of(tmp_path, {EVIL: frame_of()}, {EVIL: frame_of(2.0)}), {}, path)
    with browser.visit(chromium, path) as visit:
        assert visit.dialogs == [] and visit.complaints == [] and len(visit.requests) == 1
        assert visit.page.inner_text("#pair-0 h2") == EVIL


def test_dark_is_dark_and_charts_follow(chromium, page_of_two, desk):
    """Labels are light on dark and dark on light."""
    script = "() => getComputedStyle(document.querySelector('[data-chart] svg text')).fill"
    with browser.visit(chromium, page_of_two, dark=True) as visit:
        light, dark = (sum(map(int, page.evaluate(script)[4:-1].split(","))) for page in (desk.page, visit.page))
    assert dark - light > 200


def test_a_phone_scrolls_only_downwards(chromium, page_of_two):
    """360 pixels: the page and its charts are no wider than the screen."""
    with browser.visit(chromium, page_of_two, browser.PHONE) as visit:
        assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= 360
        assert all(box.bounding_box()["width"] <= 360 for box in visit.page.query_selector_all("[data-chart] svg"))
