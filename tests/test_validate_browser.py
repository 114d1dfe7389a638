"""The page of a validation in a real browser: drawn, silent, offline, in both themes and on a phone."""

import pytest

from simserve.report import render_validation
from tests import browser
from tests.test_report_page import EVIL
from tests.validate_pages import MANIFEST, differing_steps, document_of

pytestmark = browser.needed


@pytest.fixture(scope="module")
def chromium():
    with browser.launched() as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two real runs, a simulation 10 % slower, a differing step and a limit."""
    path = tmp_path_factory.mktemp("page") / "validation.html"
    document, drawn = document_of(max_error=0.05)
    document["steps"] = differing_steps()
    render_validation(document, drawn, MANIFEST, path)
    return path


@pytest.fixture(scope="module")
def desk(chromium, page):
    with browser.visit(chromium, page) as visit:
        yield visit


def test_nothing_is_said_or_loaded(desk, page):
    """No message on the console, no request but the file."""
    assert desk.complaints == [] and desk.requests == [page.resolve().as_uri()]


def test_every_chart_is_drawn_with_marks_in_it(desk):
    """Errors, four distributions, three over time; each of some size, with something in it."""
    boxes = desk.page.query_selector_all("[data-chart]")
    assert len(boxes) == 8
    for box in boxes:
        name, size = box.get_attribute("data-chart"), box.query_selector("svg").bounding_box()
        assert size["width"] > 200 and size["height"] > 100, name
        assert box.query_selector(".mark-line path, .mark-symbol path"), name


def test_both_curves_are_in_each_distribution(desk):
    """Measured and predicted, told apart by colour and dash."""
    for name in ("ttft_s", "tpot_s", "e2e_s", "itl_s"):
        lines = desk.page.query_selector_all(f"[data-chart=curve-{name}] .mark-line path")
        assert len({(line.get_attribute("stroke"), line.get_attribute("stroke-dasharray")) for line in lines}) == 2


def test_errors_lie_on_their_side_of_zero(desk):
    """Longer latencies right of the line, a smaller throughput left of it; the limits are dashed lines."""
    box = desk.page.query_selector("[data-chart=errors]")
    lines = [line.bounding_box()["x"] for line in box.query_selector_all(".mark-rule.role-mark line")]
    marks = [mark.bounding_box() for mark in box.query_selector_all(".mark-symbol path")]
    labels = desk.page.eval_on_selector_all(
        "[data-chart=errors] .role-axis-label text", "all => all.map(one => one.textContent)"
    )
    figures = [text for text in labels if not text.endswith("%")]
    zero = lines[0]
    places = {name: mark["x"] + mark["width"] / 2 - zero for name, mark in zip(figures, marks, strict=True)}
    assert places["TTFT, mean"] > 20 and places["output tokens/s"] < 0
    assert lines[1] < zero < lines[2]


def test_a_tooltip_tells_error_and_noise(desk):
    """Pointing at a mark names the figure, both values, the error, the noise and what that means."""
    mark = desk.page.query_selector_all("[data-chart=errors] .mark-symbol path")[3]
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    desk.page.mouse.move(x - 3, y)
    desk.page.mouse.move(x, y, steps=2)
    desk.page.wait_for_selector("#vg-tooltip-element.visible", timeout=5_000)
    text = desk.page.inner_text("#vg-tooltip-element")
    assert "TTFT, mean" in text and "±" in text and "over the limit" in text


def test_dark_is_dark_and_charts_follow(chromium, page, desk):
    """Labels are light on dark and dark on light."""
    script = "() => getComputedStyle(document.querySelector('[data-chart] svg text')).fill"
    with browser.visit(chromium, page, dark=True) as visit:
        light, dark = (sum(map(int, one.evaluate(script)[4:-1].split(","))) for one in (desk.page, visit.page))
    assert dark - light > 200


def test_a_phone_scrolls_only_downwards(chromium, page):
    """360 pixels: the page and its charts are no wider than the screen."""
    with browser.visit(chromium, page, browser.PHONE) as visit:
        assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= 360
        assert all(box.bounding_box()["width"] <= 360 for box in visit.page.query_selector_all("[data-chart] svg"))


def test_names_with_html_in_them_are_shown_as_text(chromium, tmp_path):
    """No dialog opens and nothing is loaded, whatever a file or an engine is called."""
    document, drawn = document_of(engine=EVIL)
    document |= {"scenario": EVIL, "notes": [EVIL]}
    render_validation(document, drawn, {}, tmp_path / "validation.html")
    with browser.visit(chromium, tmp_path / "validation.html") as visit:
        assert visit.dialogs == [] and visit.complaints == [] and len(visit.requests) == 1
        assert visit.page.inner_text("h1") == EVIL
