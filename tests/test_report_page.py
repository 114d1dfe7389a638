"""The page as a file: whole, small, safe whatever names it holds, and the same for the same run."""

import base64
import hashlib
import json
import re
import time
from dataclasses import replace

import altair as alt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import OutputError
from simserve.report import render_report
from simserve.report.content import page_content
from simserve.report.page import emphasised, render_page, script_json, vega_bundle
from tests.report_builders import MANIFEST, PAGED, POLICIES, ROOFLINE, STATIC, SourcedStepTime, run_of, skewed_table

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)><!-- {{ 7*7 }} \"'&"
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def html():
    return render_page(run_of(), MANIFEST)


def charts_of(html):
    """The specifications embedded in a page."""
    return json.loads(re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', html, re.S)[1])


def test_the_page_is_whole_and_says_what_it_is(html):
    """Language, title, every section, the headline, the profile and its error, the provenance."""
    assert html.lstrip().startswith("<!doctype html>") and html.rstrip().endswith("</html>")
    for text in ('<html lang="en">', "<title>skewed64 – simserve report</title>", "held-out error 3.1", "3.11.2"):
        assert text in html
    sections = re.findall(r'<section id="([\w-]+)"', html)
    assert sections == ["summary", "latency", "load", "cache", "slots", "step-times", "workload", "provenance"]
    assert html.index("<b>continuous-contiguous</b> and <b>continuous-paged</b> serve <b>1.") < html.index("<main")


def test_every_chart_has_its_place_and_its_text(html):
    """Each embedded chart is drawn once, by a box that says in words what it shows."""
    boxes = re.findall(r'role="img" aria-label="([^"]+)" data-chart="([\w-]+)"', html)
    assert sorted(name for _, name in boxes) == sorted(charts_of(html)["specs"])
    assert all(len(label) > 30 for label, _ in boxes)


def test_every_chart_is_valid_vega_lite(html):
    """Altair's check against the schema, which rendering skips because it takes seconds."""
    for spec in charts_of(html)["specs"].values():
        alt.Chart.from_dict(spec, validate=True)


def test_the_javascript_is_there_once(html):
    """One copy of Vega for all charts, in one classic script, with one script of ours after it."""
    assert html.count(vega_bundle()[:2000]) == 1
    assert len(re.findall(r"<script>", html)) == 2


def test_the_policy_forbids_all_loading_and_names_these_scripts(html):
    """No source but the two scripts, by their hashes; nothing is evaluated from text."""
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)[1].replace("&#39;", "'")
    scripts = re.findall(r"<script>(.*?)</script>", html, re.S)
    digests = {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == digests
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy and "unsafe-eval" not in policy


def test_nothing_is_loaded_from_outside(html):
    """Outside the scripts there is no address at all, no import, and no source."""
    page = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert not re.search(r"https?://|@import|\bsrc\s*=|url\((?!#)", page)


def test_names_with_html_in_them_are_text():
    """Scenario, variants, model, notes, reasons and manifest can hold anything; none of it becomes markup."""
    run = run_of({EVIL: PAGED, "b": replace(PAGED, max_model_len=100)}, name=EVIL, notes=[EVIL])
    run.variants[EVIL].scenario.model = EVIL
    run.variants["b"].records.requests.reject_reason.update({3: EVIL})
    html = render_page(run, {EVIL: {EVIL: EVIL}})
    page = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert "<img" not in page and "alert(1)</" not in html and "49" not in re.findall(r"<h1>.*?</h1>", page)[0]
    assert html.count("<script") == 3
    assert "&lt;img src=x onerror=alert(2)&gt;" in page
    assert any(
        EVIL in json.dumps(spec, ensure_ascii=False).replace('\\"', '"') for spec in charts_of(html)["specs"].values()
    )


def test_only_whole_names_are_bold():
    """A variant called "a" is no letter of the words around it, and a name is not bold inside a longer one."""
    words = str(emphasised("a carries 2.00× what a-b carries", ["a", "a-b"]))
    assert words == "<b>a</b> carries <b>2.00×</b> what <b>a-b</b> carries"


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_in_a_script_cannot_end_it(value):
    """Whatever the text, no tag or comment can open or close, and the value comes back unchanged."""
    text = str(script_json(value))
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_the_same_run_gives_the_same_bytes(tmp_path):
    """A page depends on the run and its manifest, not on when or how often it is made."""
    for name in ("a.html", "b.html"):
        render_report(run_of(), MANIFEST, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_an_unwritable_place_is_one_sentence(tmp_path):
    """OutputError, not a traceback."""
    with pytest.raises(OutputError, match=r"report\.html: cannot be written"):
        render_report(run_of({"c": PAGED}), MANIFEST, tmp_path / "missing" / "report.html")


def test_warnings_stand_before_everything_else():
    """Uncalibrated, extrapolated and rejected: a badge each, above the summary."""
    settings = {"c": replace(PAGED, max_model_len=100)}
    html = render_page(run_of(settings, step_time=SourcedStepTime(ROOFLINE, limit=4)), MANIFEST)
    head = html[html.index("<body>") : html.index("<main")]
    assert re.findall(r"</span>([a-z ]+)</strong>", head) == ["uncalibrated", "extrapolated", "requests rejected"]
    assert "Requests turned away" in html and "max_model_len" in html


def test_a_long_run_stays_small_and_quick():
    """20,000 requests: under 3 MB, no chart above 5,000 rows (Vega-Lite's limit in Altair), under 3 s of CPU."""
    run = run_of({"continuous": replace(PAGED, max_num_seqs=64, num_blocks=2000)}, skewed_table(20_000, rate_rps=80.0))
    vega_bundle()
    began = time.process_time()
    html = render_page(run, MANIFEST)
    assert time.process_time() - began < 3
    assert len(html.encode()) < 3 * MEGABYTE
    rows = [len(data) for spec in charts_of(html)["specs"].values() for data in spec["datasets"].values()]
    assert max(rows) <= 1500
    assert "left out: continuous" in html


def test_four_variants_take_under_two_seconds():
    """Charts, page and all, the shared script apart (made once per process): 2 s of CPU."""
    run = run_of()
    vega_bundle()
    began = time.process_time()
    html = render_page(run, MANIFEST)
    assert time.process_time() - began < 2
    assert len(html.encode()) < 3 * MEGABYTE


def test_many_variants_stay_readable_and_small():
    """Twenty variants: lines for all, timelines and slots for the first few, and the page still under 3 MB."""
    many = {f"slots-{n}": replace(PAGED, max_num_seqs=n) for n in range(1, 21)}
    html = render_page(run_of(many), MANIFEST)
    assert len(html.encode()) < 3 * MEGABYTE
    specs = charts_of(html)["specs"]
    assert len([name for name in specs if name.startswith("slots-")]) == 8
    assert len([name for name in specs if re.match(r"cache-v\d", name)]) == 12


@pytest.mark.parametrize(
    ("settings", "table"),
    [
        ({"none": PAGED}, skewed_table(0)),
        ({"one": PAGED}, skewed_table(1)),
        ({"rejected": replace(PAGED, max_model_len=5)}, skewed_table(5)),
        ({"rejected": replace(PAGED, max_model_len=5), "served": STATIC}, skewed_table(5)),
        ({"tight": replace(PAGED, num_blocks=20, watermark=0.01)}, skewed_table(40, rate_rps=50.0)),
        ({"burst": POLICIES["static-paged"]}, replace(skewed_table(9), arrival_ns=np.zeros(9, np.int64))),
    ],
)
def test_odd_runs_have_a_page_too(settings, table):
    """No requests, one, all or some rejected, preemptions, everyone at once: a page with what there is."""
    run = run_of(settings, table)
    html = render_page(run, MANIFEST)
    for spec in charts_of(html)["specs"].values():
        alt.Chart.from_dict(spec, validate=True)
    assert "nan" not in re.sub(r"<script.*?</script>", "", html, flags=re.S).lower().replace("provenance", "")
    assert page_content(run, MANIFEST).headline in re.sub(r"</?b>", "", html)
