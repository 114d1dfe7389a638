"""The chapters' tables on a calibration page: every number of them, in words and in charts."""

import json
import re

import altair as alt
import pytest

from calibrate.chapters.command import assemble
from simserve.report import report_on_profile
from simserve.report.calibration import render_calibration_page
from simserve.step_time.chapters_schema import (
    SUFFIX,
    CacheRow,
    DecodeRow,
    Knee,
    KvShape,
    PrefillRow,
    PushedTokens,
    Residents,
    Timed,
    WeightsRow,
    WeightsTable,
)
from simserve.step_time.profile_schema import PROFILES_DIR, load_profile
from tests import browser
from tests.test_calibration_page import section
from tests.test_report_page import EVIL, MEGABYTE, charts_of

SHIPPED = "25m-cpu-fp32"


def timed(seconds):
    """Three samples around a median."""
    samples = (0.9 * seconds, seconds, 1.1 * seconds)
    return Timed(seconds=seconds, low_s=samples[0], high_s=samples[2], samples=samples, num_disturbed=0)


def kv_shape(name, attention, kv_heads):
    num_bytes = 2 * 24 * kv_heads * 64 * 2
    return KvShape(
        name=name,
        attention=attention,
        num_layers=24,
        num_kv_heads=kv_heads,
        head_dim=64,
        dtype="fp16",
        measured=num_bytes,
        formula=num_bytes,
    )


def tables(reason="no kernel"):
    """A run's tables as a machine might have measured them; int4 does not run on it."""
    return {
        "prefill": tuple(PrefillRow(num_new_tokens=n, step=timed(1e-3 * n)) for n in (16, 64, 256)),
        "decode": tuple(DecodeRow(batch_size=1, num_context_tokens=n, step=timed(0.01)) for n in (16, 64, 256)),
        "batch": tuple(DecodeRow(batch_size=b, num_context_tokens=256, step=timed(0.01)) for b in (1, 2, 4)),
        "knee": Knee(knee=4, low=2, high=4),
        "cache": tuple(
            CacheRow(
                num_tokens=n,
                cached=timed(0.01),
                recomputed=timed(1e-3 * n),
                cached_peak_bytes=n << 13,
                recomputed_peak_bytes=n << 15,
            )
            for n in (16, 64, 256)
        ),
        "peak_method": "counted by hand",
        "pushed": PushedTokens(
            model="tiny",
            num_prompt_tokens=512,
            num_output_tokens=256,
            cached=767,
            recomputed=163_712,
            num_equal_tokens=256,
            cached_s=0.1,
            recomputed_s=2.0,
        ),
        "kv_shapes": (kv_shape("all", "multi-head", 14), kv_shape("two", "grouped-query", 2)),
        "residents_model": "qwen2.5-0.5b",
        "residents": tuple(
            Residents(num_sequences=n, num_tokens_each=65_536 // n, num_bytes=768 << 20) for n in (32, 64, 128)
        ),
        "weights": WeightsTable(
            num_context_tokens=256,
            num_new_tokens=128,
            rows=(
                WeightsRow(name="fp32", method="a", weight_bytes=100 << 20, decode=timed(0.01), prefill=timed(0.1)),
                WeightsRow(name="bf16", method="b", weight_bytes=50 << 20, decode=timed(0.004), prefill=timed(0.04)),
                WeightsRow(name="int4", method="c", refused=reason),
            ),
        ),
    }


@pytest.fixture(scope="module")
def profile():
    return load_profile(SHIPPED)


@pytest.fixture(scope="module")
def html(profile):
    return render_calibration_page(profile, assemble(SHIPPED, profile.provenance, tables(), 60.0))


def test_every_table_has_its_section(html):
    """After the profile's own sections, in the order of the story, and each is in the navigation."""
    sections = re.findall(r'<section id="([\w-]+)"', html)
    assert sections[sections.index("kv") :][1:6] == ["cache", "pushed", "heads", "weights", "curves"]
    assert re.findall(r'<li><a href="#([\w-]+)">', html)[: len(sections)] == sections


def test_the_chapters_numbers_stand_there(html):
    """163,712 against 767 and 768, 213 times; 12,288 and 86,016 bytes; 768 MiB three times."""
    pushed, heads = section(html, "pushed"), section(html, "heads")
    assert all(text in pushed for text in ("163,712", "767", "768", "213 times"))
    assert heads.count("12,288") == 2 and heads.count("86,016") == 2  # formula and tensors
    assert heads.count("768 MiB") == 3 and "2 · 24 · 2 · 64 · 2" in heads


def test_with_and_without_a_cache_in_words(html):
    """At 256 tokens 10 ms against 256 ms: 25.6 times; 2 MiB against 8."""
    text = section(html, "cache")
    assert "10.0 ms with a cache and 256 ms without: 25.6×" in text
    assert "2.00 MiB with a cache of 256 tokens, 8.00 MiB without" in text and "counted by hand" in text


def test_what_does_not_run_is_said_and_not_drawn(html):
    """int4 has a row that says so and the reason below; charts show the two that ran."""
    text = section(html, "weights")
    assert "int4 does not run here" in text and "int4: c; does not run here: no kernel" in text
    assert "bf16 decodes fastest, at 4.00 ms against 10.0 ms in fp32" in text
    bars = json.dumps(charts_of(html)["specs"]["chapters-weights-decode"])
    assert "bf16" in bars and "int4" not in bars


def test_the_knee_with_its_interval(html):
    """The knee that was measured, and what 90 % of the draws say."""
    assert "is 4 (90 % of bootstrap draws: 2 to 4): 4.00× the throughput" in section(html, "curves")


def test_charts_are_valid_and_the_page_small(html):
    """Vega-Lite's schema, and under 3 MB with everything on it."""
    specs = charts_of(html)["specs"]
    chapters = [name for name in specs if name.startswith("chapters-")]
    assert chapters == ["chapters-step", "chapters-peak", "chapters-weights-decode", "chapters-weights-prefill"]
    for name in chapters:
        alt.Chart.from_dict(specs[name], validate=True)
    assert len(html.encode()) < 3 * MEGABYTE


def test_reasons_with_html_in_them_are_text(profile):
    """What a library says when it refuses becomes no markup."""
    html = render_calibration_page(profile, assemble("x", profile.provenance, tables(EVIL), 1.0))
    page = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert "<img" not in page and html.count("<script") == 3 and "&lt;img src=x" in page


def test_tables_beside_a_profile_are_found_unless_they_are_of_another_model(profile, tmp_path):
    """NAME.chapters.json is shown with NAME.json; one of other dimensions or dtype is not."""
    path = tmp_path / "mine.json"
    path.write_text((PROFILES_DIR / f"{SHIPPED}.json").read_text(encoding="utf-8"), encoding="utf-8")
    other = profile.provenance.model_copy(update={"dtype": "bf16"})
    for made, shown in ((profile.provenance, True), (other, False)):
        text = json.dumps(assemble("mine", made, tables(), 1.0).model_dump(mode="json"))
        (tmp_path / f"mine{SUFFIX}").write_text(text, encoding="utf-8")
        page = report_on_profile(path).read_text(encoding="utf-8")
        assert ('id="pushed"' in page) is shown


@browser.needed
def test_in_a_browser_everything_is_drawn_on_a_phone_too(html, tmp_path):
    """Silent, every chart drawn, no wider than the screen."""
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    with browser.launched() as chromium, browser.visit(chromium, path, browser.PHONE) as visit:
        assert visit.complaints == [] and len(visit.requests) == 1
        assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= 360
        for box in visit.page.query_selector_all("[data-chart^=chapters]"):
            assert box.query_selector(".mark-line path, .mark-rect path, .mark-bar path, .mark-symbol path")
