"""The report in a real browser: drawn, silent, offline, in both themes, on a phone and by keyboard."""

from dataclasses import replace

import pytest

from simserve.report import render_report
from tests import browser
from tests.report_builders import MANIFEST, PAGED, POLICIES, run_of
from tests.test_report_page import EVIL

pytestmark = browser.needed


@pytest.fixture(scope="module")
def chromium():
    with browser.launched() as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    render_report(run_of(), MANIFEST, path)
    return path


@pytest.fixture(scope="module")
def desk(chromium, report):
    with browser.visit(chromium, report) as visit:
        yield visit


def test_nothing_is_said_on_the_console(desk):
    """No error, and no warning of Vega's either."""
    assert desk.complaints == []


def test_no_request_leaves_the_page(desk, report):
    """The file itself is all that is ever asked for."""
    assert desk.requests == [report.resolve().as_uri()]


def test_every_chart_is_drawn(desk):
    """Each box holds a picture of some size with marks in it."""
    boxes = desk.page.query_selector_all("[data-chart]")
    assert len(boxes) == 22
    for box in boxes:
        name, size = box.get_attribute("data-chart"), box.query_selector("svg").bounding_box()
        assert size["width"] > 200 and size["height"] > 50, name
        assert box.query_selector(".mark-line path, .mark-area path, .mark-rect path"), name


def test_lines_that_coincide_can_both_be_seen(desk):
    """Later variants are drawn on top, thinner, each in its own colour and dash."""
    lines = desk.page.query_selector_all("[data-chart=latency-ttft] .mark-line path")
    widths = [float(line.get_attribute("stroke-width")) for line in lines]
    assert widths == sorted(widths, reverse=True) and widths[0] > 1.5 * widths[-1]
    for attribute in ("stroke", "stroke-dasharray"):
        assert len({line.get_attribute(attribute) for line in lines}) == 4


def test_a_tooltip_compares_the_variants(desk):
    """Pointing at a curve names every variant and its figure, with units."""
    box = desk.page.query_selector("[data-chart=latency-ttft]")
    box.scroll_into_view_if_needed()
    at = box.bounding_box()
    x, y = at["x"] + at["width"] / 2, at["y"] + at["height"] / 2
    desk.page.mouse.move(x, y)
    desk.page.mouse.move(x + 2, y, steps=2)  # as a hand does: Vega shows a tooltip when the pointer moves over a mark
    desk.page.wait_for_selector("#vg-tooltip-element.visible", timeout=5_000)
    text = desk.page.inner_text("#vg-tooltip-element")
    assert all(name in text for name in POLICIES) and "ms" in text


def test_names_with_html_in_them_are_shown_as_text(chromium, tmp_path):
    """No dialog opens, nothing is loaded, and the name is there to read, in the page and in the charts."""
    path = tmp_path / "report.html"
    run = run_of({EVIL: PAGED, "b": replace(PAGED, max_num_seqs=2)}, name=EVIL, notes=[EVIL])
    render_report(run, {EVIL: EVIL}, path)
    with browser.visit(chromium, path) as visit:
        assert visit.dialogs == [] and visit.complaints == [] and len(visit.requests) == 1
        assert visit.page.inner_text("h1") == EVIL
        assert visit.page.query_selector("main img") is None
        label = visit.page.text_content("[data-chart=cache-shares] svg")
        assert "</script><script>alert(1)" in label


def test_dark_is_dark_and_charts_follow(chromium, report, desk):
    """The page's ground and a chart's labels swap light and dark with the reader's preference."""
    with browser.visit(chromium, report, dark=True) as visit:
        for selector, property_, darker in (
            ("body", "background-color", True),
            ("[data-chart] svg text", "fill", False),
        ):
            light, dark = (_luminance(page, selector, property_) for page in (desk.page, visit.page))
            assert (dark < light) is darker and abs(light - dark) > 60, selector


def test_a_phone_scrolls_only_downwards(chromium, report):
    """360 pixels: the page is no wider than the screen, wide tables scroll in their own box, charts fit."""
    with browser.visit(chromium, report, browser.PHONE) as visit:
        page = visit.page
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
        assert page.evaluate(
            "() => { const b = document.querySelector('.comparison'); return b.scrollWidth > b.clientWidth }"
        )
        for box in page.query_selector_all("[data-chart] svg"):
            assert box.bounding_box()["width"] <= 360


def test_the_keyboard_reaches_every_section(chromium, report):
    """Tab goes to the skip link first, then through the navigation and every section, in the page's order."""
    with browser.visit(chromium, report) as visit:
        page = visit.page
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.className") == "skip"
        wanted = page.eval_on_selector_all("section", "all => all.map(one => one.id)")
        reached = []
        for _ in range(120):
            page.keyboard.press("Tab")
            section = page.evaluate("() => document.activeElement.closest('section')?.id")
            if section and section not in reached:
                reached.append(section)
        assert reached == wanted


def test_the_skip_link_moves_the_focus(chromium, report):
    """Enter on it lands in the summary."""
    with browser.visit(chromium, report) as visit:
        visit.page.keyboard.press("Tab")
        visit.page.keyboard.press("Enter")
        assert visit.page.evaluate("() => document.activeElement.id") == "summary"


def test_tables_have_heads_and_captions(desk):
    """Every table has a caption, every head a scope, and every scrolling box can be focused and has a name."""
    count = desk.page.evaluate
    assert count("() => [...document.querySelectorAll('main table')].every(t => t.caption && t.caption.textContent)")
    assert count("() => [...document.querySelectorAll('th')].every(th => th.scope)")
    assert count("() => [...document.querySelectorAll('.scroll')].every(b => b.tabIndex === 0 && b.ariaLabel)")


def test_paper_is_light_whatever_the_screen(chromium, report):
    """A dark reader's print has dark ink on white."""
    with browser.visit(chromium, report, dark=True) as visit:
        visit.page.emulate_media(media="print", color_scheme="light")
        assert _luminance(visit.page, "body", "background-color") > 200
        assert not visit.page.is_visible("nav")


def _luminance(page, selector, property_):
    """0 (black) to 255 (white) of an element's computed colour."""
    script = "([s, p]) => getComputedStyle(document.querySelector(s)).getPropertyValue(p)"
    red, green, blue = (float(part) for part in page.evaluate(script, [selector, property_])[4:-1].split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
