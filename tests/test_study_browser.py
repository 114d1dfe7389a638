"""Pages of studies in a real browser: drawn, silent, offline; choices redraw, clicks open runs, in both themes."""

import pytest

from simserve.report import render_capacity, render_knee, render_sweep
from tests import browser
from tests.study_documents import MANIFEST, capacity_document, knee_document, sweep_document
from tests.test_report_page import EVIL

pytestmark = browser.needed
BATCH = {"engine.max_num_seqs": [8, 16, 32]}
RENDER = {"sweep": render_sweep, "settings": render_sweep, "knee": render_knee, "capacity": render_capacity}


@pytest.fixture(scope="module")
def chromium():
    with browser.launched() as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One page of each kind, and the report of the sweep's first run beside it."""
    folder = tmp_path_factory.mktemp("study")
    documents = {
        "sweep": sweep_document(loads=[1.0, 3.0, 5.0, 7.0, 9.0, 11.0], others={"engine.max_num_seqs": [8, 16]}),
        "settings": sweep_document(loads=[], others=BATCH),
        "knee": knee_document(),
        "capacity": capacity_document(settings=[{"engine.max_num_seqs": n} for n in (8, 16)]),
    }
    for name, document in documents.items():
        RENDER[name](document, MANIFEST, folder / f"{name}.html")
    for i in range(0, 36, 2):
        (folder / "runs" / f"{i:04d}").mkdir(parents=True)
        (folder / "runs" / f"{i:04d}" / "report.html").write_text("<title>a run</title>", encoding="utf-8")
    return folder


@pytest.fixture
def sweep(chromium, pages):
    with browser.visit(chromium, pages / "sweep.html") as visit:
        yield visit


def target(page, point):
    """The middle of the mark that the pointer meets over a point of the first panel, found by what it would tell."""
    marks = page.query_selector_all('[data-chart="curve-0"] .mark-symbol [cursor], [data-chart="curve-0"] path')
    found = [mark for mark in marks if _is(mark, point)]
    found[-1].scroll_into_view_if_needed()
    box = found[-1].bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def redrawn(page, section):
    """Waits until a choice has been taken up and every chart of the section stands again."""
    page.wait_for_timeout(50)
    page.wait_for_selector(f"#{section}:not(:has([data-chart]:not([data-drawn])))", timeout=20_000)


def _is(mark, point):
    return mark.evaluate("(m, id) => m.__data__ && m.__data__.datum && m.__data__.datum.id === id", point)


@pytest.mark.parametrize("name", list(RENDER))
@pytest.mark.parametrize("size", [browser.DESK, browser.PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_drawn_silent_and_fits(chromium, pages, name, size, dark):
    """No word on the console, no request but the file; every chart has marks; a phone scrolls only downwards."""
    path = pages / f"{name}.html"
    with browser.visit(chromium, path, size, dark) as visit:
        page = visit.page
        assert visit.complaints == [] and visit.dialogs == []
        assert visit.requests == [path.resolve().as_uri()]
        assert page.evaluate("() => document.documentElement.scrollWidth") <= size[0]
        boxes = page.query_selector_all("[data-chart]")
        assert len(boxes) == page.evaluate("() => document.querySelectorAll('figure').length") > 3
        for box in boxes:
            drawn, at = box.get_attribute("data-chart"), box.query_selector("svg").bounding_box()
            assert 150 < at["width"] <= size[0] and at["height"] > 50, drawn
            assert box.query_selector(".mark-line path, .mark-symbol path, .mark-rect path"), drawn


@pytest.mark.parametrize("name", list(RENDER))
def test_no_label_of_an_axis_lies_on_another(chromium, pages, name):
    """Labels of one axis never overlap, on a desk and on a phone."""
    for size in (browser.DESK, browser.PHONE):
        with browser.visit(chromium, pages / f"{name}.html", size) as visit:
            overlapping = visit.page.evaluate(
                """() => [...document.querySelectorAll('.role-axis-label')].filter((group) => {
                    const boxes = [...group.querySelectorAll('text')].filter((t) => t.getAttribute('opacity') !== '0')
                        .map((t) => t.getBoundingClientRect());
                    return boxes.some((a, i) => boxes.slice(i + 1).some((b) => a.left < b.right && b.left < a.right
                        && a.top < b.bottom && b.top < a.bottom));
                }).map((group) => group.closest('[data-chart]').dataset.chart)"""
            )
            assert overlapping == []


def test_pointing_at_a_point_tells_its_numbers(sweep):
    """Variant, settings, load axis, value and interval with their units, and what a click would open."""
    x, y = target(sweep.page, 1)
    sweep.page.mouse.move(x - 3, y)
    sweep.page.mouse.move(x, y, steps=3)
    sweep.page.wait_for_selector("#vg-tooltip-element.visible", timeout=5_000)
    text = sweep.page.inner_text("#vg-tooltip-element")
    for words in (
        "static-contiguous",
        "max_num_seqs",
        "requests/s offered",
        "output tokens/s",
        "600",
        "95 %",
        " s to ",
        "its command",
    ):
        assert words in text.replace("\u00a0", " "), words


def test_a_click_on_a_point_opens_its_run(sweep, pages):
    """Where the document names a report, relative to the page."""
    sweep.page.mouse.click(*target(sweep.page, 4))
    sweep.page.wait_for_url("**/runs/0004/report.html", timeout=5_000)
    assert sweep.page.title() == "a run"


def test_a_click_on_a_point_without_a_run_shows_the_command(sweep):
    """A panel with the command, which Copy copies and Escape closes; the page stays where it is."""
    page = sweep.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.mouse.click(*target(page, 1))
    page.wait_for_selector("dialog[open]")
    assert "static-contiguous at 3.00 requests/s offered" in page.inner_text("dialog")
    command = page.inner_text("dialog code")
    assert command.startswith("simserve run skewed64.yaml --set")
    page.click("dialog [data-copy]")
    page.wait_for_selector("dialog [data-copied]:has-text('Copied')")
    assert page.evaluate("() => navigator.clipboard.readText()") == command
    page.keyboard.press("Escape")
    assert page.query_selector("dialog[open]") is None and sweep.complaints == []


def test_a_refused_clipboard_leaves_the_command_selected(sweep):
    """Where the browser copies nothing, the text is selected and the panel says how to go on."""
    page = sweep.page
    page.evaluate(
        """() => {
            const refuse = () => Promise.reject(new Error('no'));
            Object.defineProperty(navigator, 'clipboard', { value: { writeText: refuse } });
            document.execCommand = () => false;
        }"""
    )
    page.mouse.click(*target(page, 1))
    page.click("dialog [data-copy]")
    page.wait_for_selector("dialog [data-copied]:has-text('Ctrl+C')")
    assert page.evaluate("() => String(getSelection())") == page.inner_text("dialog code")
    page.click("dialog [data-close]")
    assert page.query_selector("dialog[open]") is None


def test_a_choice_redraws_the_charts_of_its_section(sweep):
    """Another latency: the axis says so in every panel, and nothing is said on the console."""
    page = sweep.page
    title = '[data-chart="curve-1"] .role-axis-title text'
    assert any("E2E mean" in text.text_content() for text in page.query_selector_all(title))
    page.select_option('#curves [data-control="y"]', label="TPOT p99")
    redrawn(page, "curves")
    assert all(
        any("TPOT p99" in text.text_content() for text in page.query_selector_all(f'[data-chart="curve-{i}"] text'))
        for i in range(2)
    )
    assert sweep.complaints == []


def test_settings_are_chosen_for_the_charts_over_the_load(sweep):
    """Other settings, other points: the highest throughput that is drawn rises with the batch limit."""
    page = sweep.page
    heights = []
    for label in ("max_num_seqs\u00a08", "max_num_seqs\u00a016"):
        page.select_option('#load [data-control="settings"]', label=label)
        redrawn(page, "load")
        marks = page.query_selector_all('[data-chart="load-output_tokens_per_s"] .mark-symbol path')
        heights.append(min(mark.bounding_box()["y"] for mark in marks if mark.get_attribute("fill") != "none"))
    assert heights[1] < heights[0]


def test_the_keyboard_does_what_the_pointer_does(chromium, pages):
    """Tab reaches the choices and, in the list of points, the link of a run; Enter opens it."""
    with browser.visit(chromium, pages / "sweep.html") as visit:
        page = visit.page
        page.focus('#curves [data-control="y"]')
        page.keyboard.press("ArrowDown")
        page.focus("#points details summary")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")  # the box that scrolls
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.getAttribute('aria-label')").startswith("report of static-")
        page.keyboard.press("Enter")
        page.wait_for_url("**/runs/0000/report.html")


def test_the_list_works_without_scripts(chromium, pages):
    """Links and commands are plain HTML."""
    context = chromium.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto((pages / "sweep.html").as_uri())
    page.click("#points details summary >> nth=0")
    assert page.is_visible("#point-0 a[data-report]")
    page.click("#point-1 details summary")
    assert "simserve run skewed64.yaml" in page.inner_text("#point-1 code")
    page.click("#point-0 a[data-report]")
    assert page.title() == "a run"
    context.close()


def test_names_with_html_in_them_are_shown_as_text(chromium, tmp_path):
    """No dialog opens, nothing is loaded, and the name is there to read, on all three pages."""
    variants = {EVIL: 8.0, "b": 9.0}
    documents = {
        "sweep": sweep_document(loads=[1.0, 7.0, 9.0], others={EVIL: [EVIL, "x"]}, variants=variants),
        "knee": knee_document(variants=variants),
        "capacity": capacity_document(variants=variants, settings=[{EVIL: EVIL}]),
    }
    for name, document in documents.items():
        RENDER[name](document | {"scenario": EVIL, "notes": [EVIL]}, {EVIL: EVIL}, tmp_path / f"{name}.html")
        with browser.visit(chromium, tmp_path / f"{name}.html") as visit:
            assert visit.dialogs == [] and visit.complaints == [] and len(visit.requests) == 1
            assert visit.page.inner_text("h1") == EVIL and visit.page.query_selector("main img") is None


def test_paper_has_no_choices(chromium, pages):
    """Printed: the charts as they stand, without controls or navigation."""
    with browser.visit(chromium, pages / "sweep.html", dark=True) as visit:
        visit.page.emulate_media(media="print", color_scheme="light")
        assert not visit.page.is_visible(".controls") and visit.page.is_visible("[data-chart] svg")
