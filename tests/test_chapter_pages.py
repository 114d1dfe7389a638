"""The chapters' pages in a real browser: what went through the model, what memory holds, where speculation pays."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from simserve import cli
from tests import browser
from tests.study_pages import sections_of, text_of

ROOT = Path(__file__).parents[1]
RUNS = {
    "no-cache": ({"work": ["work-tokens", "work-macs"], "room": ["room-tokens"]}, ("163,712 tokens", "no cache")),
    "attention": ({"room": ["room-tokens"]}, ("86,016 bytes each", "at most 18 sequences", "14 KV heads")),
    "weights": ({"room": ["room-memory", "room-tokens"]}, ("19.3 GiB of cache with int4", "int4 weights")),
    "speculation": ({"work": ["work-tokens", "work-macs", "work-passes"]}, ("tokens a pass", "drafts of 8")),
}

pytestmark = browser.needed


@pytest.fixture(scope="module")
def chromium():
    with browser.launched() as running:
        yield running


def made(command, scenario, folder, *options):
    """The folder that a command leaves."""
    path = str(ROOT / "scenarios" / "chapters" / f"{scenario}.yaml")
    done = CliRunner().invoke(cli.app, [command, path, *options, "--quiet", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("scenario", RUNS)
def test_a_run_s_page_shows_the_chapter(scenario, chromium, tmp_path):
    """Its figures and its words are there, drawn without a complaint, no wider than a phone, in the dark too."""
    path = made("run", scenario, tmp_path / "out") / "report.html"
    html = path.read_text(encoding="utf-8")
    figures, words = RUNS[scenario]
    assert sections_of(html).items() >= figures.items()
    assert all(each in text_of(html) for each in words)
    for size, dark in ((browser.DESK, False), (browser.PHONE, True)):
        with browser.visit(chromium, path, size, dark) as visit:
            assert visit.complaints == []
            assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= size[0]
            for name in (name for names in figures.values() for name in names):
                assert visit.page.query_selector(f"[data-chart={name}] .mark-rect path"), name


def test_a_sweep_s_page_draws_the_break_even(chromium, tmp_path):
    """Both variants cross the line at 1, a mark each, and the page says where."""
    options = ("--over", "engine.speculation.acceptance=0.1,0.5,0.9", "--reports", "none", "--workers", "1")
    path = made("sweep", "speculation", tmp_path / "out", *options, "--replications", "2") / "sweep.html"
    assert "Where speculation pays" in text_of(path.read_text(encoding="utf-8"))
    with browser.visit(chromium, path, browser.PHONE) as visit:
        assert visit.complaints == []
        assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= browser.PHONE[0]
        table = visit.page.inner_text("#speculation table")
        assert table.count("above it") == 3 and "draft-8" in table
        assert len(visit.page.query_selector_all("[data-chart=speedup-0] .mark-line path")) >= 6
