"""The calibration page in a real browser: drawn, silent, offline, in both themes and on a phone."""

import pytest

from simserve.report import render_calibration
from simserve.step_time.profile_schema import load_profile
from tests import browser
from tests.test_report_page import EVIL

pytestmark = browser.needed


@pytest.fixture(scope="module")
def chromium():
    with browser.launched() as running:
        yield running


@pytest.fixture(scope="module")
def profile():
    return load_profile("25m-cpu-fp32")


@pytest.fixture(scope="module")
def page_file(profile, tmp_path_factory):
    path = tmp_path_factory.mktemp("calibration") / "profile.html"
    render_calibration(profile, path)
    return path


@pytest.fixture(scope="module")
def desk(chromium, page_file):
    with browser.visit(chromium, page_file) as visit:
        yield visit


def test_nothing_is_said_and_nothing_is_asked_for(desk, page_file):
    """No error or warning on the console; the file itself is all that is ever loaded."""
    assert desk.complaints == []
    assert desk.requests == [page_file.resolve().as_uri()]


def test_every_chart_is_drawn(desk):
    """Each box holds a picture of some size with marks in it."""
    boxes = desk.page.query_selector_all("[data-chart]")
    assert len(boxes) >= 12
    for box in boxes:
        name, size = box.get_attribute("data-chart"), box.query_selector("svg").bounding_box()
        assert size["width"] > 200 and size["height"] > 50, name
        assert box.query_selector(".mark-line path, .mark-symbol path, .mark-rect path"), name


def test_single_steps_are_seen_beside_the_medians(desk, profile):
    """The batch curve has a ring per sample behind it (up to the limit), not only its medians."""
    curve = profile.batch_curve
    samples = [s for s in profile.samples if s.phase == "decode" and s.num_context_tokens == curve.num_context_tokens]
    rings = desk.page.query_selector_all("[data-chart=batch-throughput] .mark-symbol path")
    assert len(rings) == len(samples) + len(curve.points)


def test_cells_of_a_table_can_be_read_in_both_themes(chromium, page_file, desk):
    """Every number of a heat map stands on its cell with a contrast of at least 3.5 (the ratio of WCAG)."""
    with browser.visit(chromium, page_file, dark=True) as dark:
        for visit in (desk, dark):
            for fill, ink in _cells(visit.page):
                assert _contrast(fill, ink) >= 3.5, (fill, ink)


def test_names_with_html_in_them_are_shown_as_text(chromium, profile, tmp_path):
    """No dialog opens, nothing is loaded, and the name is there to read."""
    made = profile.provenance.model_copy(update={"model": EVIL, "device_name": EVIL, "notes": (EVIL,)})
    path = tmp_path / "evil.html"
    render_calibration(profile.model_copy(update={"name": EVIL, "provenance": made}), path)
    with browser.visit(chromium, path) as visit:
        assert visit.dialogs == [] and visit.complaints == [] and len(visit.requests) == 1
        assert visit.page.inner_text("h1") == EVIL
        assert visit.page.query_selector("main img") is None


def test_a_phone_scrolls_only_downwards(chromium, page_file):
    """360 pixels: the page is no wider than the screen and charts fit."""
    with browser.visit(chromium, page_file, browser.PHONE) as visit:
        assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= 360
        for box in visit.page.query_selector_all("[data-chart] svg"):
            assert box.bounding_box()["width"] <= 360


def test_tables_have_heads_and_captions_and_the_keyboard_reaches_every_section(desk):
    """Captions, scopes, names of scrolling boxes, and a link in the navigation for each section."""
    ask = desk.page.evaluate
    assert ask("() => [...document.querySelectorAll('main table')].every(t => t.caption && t.caption.textContent)")
    assert ask("() => [...document.querySelectorAll('th')].every(th => th.scope)")
    assert ask("() => [...document.querySelectorAll('.scroll')].every(b => b.tabIndex === 0 && b.ariaLabel)")
    links = ask("() => [...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
    assert links == ask("() => [...document.querySelectorAll('section')].map(s => s.id)")


def _cells(page):
    """Computed fills of the decode table's cells with those of their numbers."""
    script = """() => {
      const box = document.querySelector('[data-chart=table-decode]');
      const of = (marks) => [...box.querySelectorAll(marks)].map((node) => getComputedStyle(node).fill);
      return [of('.role-mark.mark-rect path'), of('.role-mark.mark-text text')];
    }"""
    fills, inks = page.evaluate(script)
    assert len(fills) == len(inks) > 20
    return list(zip(fills, inks, strict=True))


def _contrast(one, other):
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color):
    parts = [int(part) / 255 for part in color[4:-1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
