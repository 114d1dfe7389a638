"""The page of a validation: what it says, in which order, that its charts are sound, and how large it gets."""

import re

import altair as alt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import OutputError
from simserve.report import render_validation
from simserve.report.validate_charts import error_reach
from simserve.report.validate_page import render_validation_page
from simserve.report.validate_words import (
    calibration_text,
    error_table,
    error_text,
    noise_text,
    steps_text,
    summary_text,
    verdict,
)
from simserve.validate.curves import NUM_BINS, curves
from simserve.validate.observed import Observed, observed_run
from simserve.validate.score import flat
from tests.test_report_page import EVIL, charts_of
from tests.validate_builders import run_of
from tests.validate_pages import MANIFEST, differing_steps, document_of, side

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def made():
    return document_of(max_error=0.05)


@pytest.fixture(scope="module")
def html(made):
    return render_validation_page(*made, MANIFEST)


def text_of(html):
    """What a reader sees, without scripts and tags."""
    return re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style).*?</\1>", "", html, flags=re.S))


def test_sections_stand_in_their_order(html):
    """Errors first, then curves, then what was known and what to know."""
    sections = re.findall(r'<section id="([\w-]+)"', html)
    assert sections == ["summary", "errors", "latency", "time", "known", "notes", "provenance"]


def test_the_table_holds_every_figure_with_error_and_noise(made, html):
    """The rows of the page are those of the document, cell by cell, rates first."""
    table = html[html.index("<tbody>") : html.index("</tbody>")]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
    head, expected = error_table(flat(made[0]["metrics"]), 0.05)
    assert [tuple(row) for row in rows] == expected and "calibration" not in head
    assert rows[0][0] == "output tokens/s" and rows[3][0] == "TTFT, mean"
    assert rows[3][5] == "over the limit" and rows[3][4].startswith("±")


def test_headline_and_badges_say_how_far_off_it_is(made, html):
    """The mean and the largest error; the limit, estimated step times and other settings are warned of."""
    assert summary_text(made[0]) in text_of(html).replace("&#39;", "'")
    head = html[html.index("<body>") : html.index("<main")]
    labels = re.findall(r"</span>([a-z ]+)</strong>", head)
    assert labels == ["over the limit", "uncalibrated", "other settings"]
    assert "TTFT, mean, E2E, p99" in head


def test_every_chart_has_words_and_is_sound(html):
    """One chart of errors, four distributions, three over time; each with a text alternative, valid Vega-Lite."""
    specs = charts_of(html)["specs"]
    boxes = re.findall(r'role="img" aria-label="([^"]+)" data-chart="([\w-]+)"', html)
    assert sorted(name for _, name in boxes) == sorted(specs)
    assert len(specs) == 8 and all(len(label) > 30 for label, _ in boxes)
    for spec in specs.values():
        alt.Chart.from_dict(spec, validate=True)


def test_the_error_chart_holds_errors_and_noise(made, html):
    """A row per figure with an error, its noise round zero, the two limits dashed."""
    spec = charts_of(html)["specs"]["errors"]
    rows = {row["label"]: row for row in max(spec["datasets"].values(), key=len)}
    entries = flat(made[0]["metrics"])
    assert len(rows) == sum(one["error"] is not None for one in entries.values())
    one = entries["ttft_s.mean"]
    assert rows["TTFT, mean"]["error"] == pytest.approx(one["error"])
    assert rows["TTFT, mean"]["high"] == -rows["TTFT, mean"]["low"] == pytest.approx(one["noise"])
    assert [{"at": -0.05}, {"at": 0.05}] in spec["datasets"].values()


def test_both_sides_are_overlaid(made, html):
    """Quantile by quantile the document's curves; the slower one lies right of the faster."""
    spec = charts_of(html)["specs"]["curve-ttft_s"]
    rows = max(spec["datasets"].values(), key=len)
    assert [row["v0"] for row in rows] == made[1]["latencies"]["ttft_s"]["measured"]
    assert all(row["v1"] > row["v0"] for row in rows)


def test_what_was_not_measured_has_no_curve():
    """Without gaps in the run there is no chart of gaps, and the table has a dash."""
    run, _ = side()
    bare = observed_run(run_of([0, 1], [1, 2], [3, 4], [5, 5]), np.array([5, 5]))
    assert bare.gaps_s is None and run.itl_s is not None
    document, drawn = document_of()
    drawn["latencies"]["itl_s"]["measured"] = [None] * len(drawn["levels"])
    assert "curve-itl_s" not in charts_of(render_validation_page(document, drawn, MANIFEST))["specs"]


def test_the_first_differing_step_is_shown_request_by_request():
    """Who prefills and decodes over what, on either side; what differs comes first; long lists are cut."""
    document, drawn = document_of()
    document["steps"] = differing_steps()
    html = render_validation_page(document, drawn, MANIFEST)
    section = html[html.index('<section id="steps"') : html.index('<section id="errors"')]
    words = text_of(section)
    assert "1 of 3 steps have the same composition; the first to differ is step 1 of run-1.jsonl" in words
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", section)]
    assert rows[0] == ["step 1 of run-1.jsonl", "measured", "predicted", ""]
    assert rows[1] == ["tokens in the step", "5", "40", "differs"] and rows[2] == ["free blocks", "58", "–", ""]
    assert rows[3] == ["request 1", "prefills 4 over 0, admitted", "decodes over 8", "differs"]
    cells = {row[0]: row[1:] for row in rows}
    assert cells["request 3"] == ["–", "decodes over 8, preempted", "differs"]
    assert rows[-1][0] == "and 16 more requests" and "request 0" not in cells
    assert "other steps" in html


def test_a_side_that_had_ended_says_so():
    """The real run goes on after ours: no state to show."""
    document, drawn = document_of()
    steps = differing_steps()
    steps["first_difference"] |= {"fields": ["the number of steps"], "predicted": None}
    document["steps"] = steps
    words = text_of(render_validation_page(document, drawn, MANIFEST))
    assert "had ended" in words and "prefills 4 over 0" in words


def test_names_with_html_in_them_are_text():
    """Files, engines, scenarios and notes can hold anything; none of it becomes markup."""
    document, drawn = document_of(engine=EVIL)
    document |= {"scenario": EVIL, "notes": [EVIL], "known_beforehand": [EVIL]}
    html = render_validation_page(document, drawn, {**MANIFEST, "measured": {EVIL: EVIL}})
    assert html.count("<script") == 3 and "<img" not in re.sub(r"<script.*?</script>", "", html, flags=re.S)


def test_a_large_run_stays_small():
    """200,000 requests: curves are bounded, and the page is under 2 MB."""
    run, measured = side(200_000)
    drawn = curves([measured], [measured], run.finished)
    assert len(drawn["over_time"]["time_s"]) == NUM_BINS
    html = render_validation_page(document_of()[0], drawn, MANIFEST)
    assert len(html.encode()) < 2 * MEGABYTE


def test_the_same_document_gives_the_same_bytes(made, tmp_path):
    """A page depends on its arguments alone; a place that cannot be written is one sentence."""
    for name in ("a.html", "b.html"):
        render_validation(*made, MANIFEST, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    with pytest.raises(OutputError, match=r"x\.html: cannot be written"):
        render_validation(*made, MANIFEST, tmp_path / "missing" / "x.html")


def observed(arrivals, firsts, lasts, outputs) -> Observed:
    run = run_of(arrivals, firsts, lasts, outputs)
    return observed_run(run, run.table.num_output_tokens)


def test_tokens_over_time_by_hand():
    """One request: it waits 2 s, then emits 9 tokens evenly over 8 s, the first at 2 s and the last at 10 s."""
    one = observed([0], [2], [10], [9])
    drawn = curves([one], [one], np.array([True]))["over_time"]
    waiting, producing = (np.array(drawn[name]["measured"]) for name in ("num_waiting", "num_producing"))
    width = 10 / NUM_BINS
    assert waiting.sum() * width == pytest.approx(2, rel=1e-3)
    assert producing.sum() * width == pytest.approx(8, rel=1e-3)
    assert np.array(drawn["output_tokens_per_s"]["measured"]).sum() * width == pytest.approx(9, rel=1e-3)
    assert waiting[0] == 1 and waiting[-1] == 0 and producing[-1] == 1


@given(st.integers(1, 60), st.integers(0, 1000))
def test_no_token_is_lost_over_time(n, seed):
    """All tokens, all waiting and all producing come back as areas, whatever the requests."""
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, 10, n))
    firsts = arrivals + rng.exponential(1, n)
    lasts = firsts + rng.exponential(2, n) * (rng.random(n) > 0.2)
    outputs = np.where(lasts > firsts, rng.integers(2, 50, n), 1)
    one = observed(arrivals, firsts, lasts, outputs)
    drawn = curves([one], [one], np.ones(n, bool))["over_time"]
    width = float(one.end_ns.max()) / 1e9 / NUM_BINS
    areas = {name: np.array(drawn[name]["measured"]).sum() * width for name in drawn if name != "time_s"}
    assert areas["output_tokens_per_s"] == pytest.approx(outputs.sum(), rel=1e-3)
    assert areas["num_waiting"] == pytest.approx((firsts - arrivals).sum(), rel=1e-3)
    assert areas["num_producing"] == pytest.approx((lasts - firsts).sum(), rel=1e-3, abs=1e-6)


@given(st.lists(st.floats(-10, 10), max_size=9))
def test_the_axis_of_errors_shows_them_all(values):
    """Symmetric, with room; errors beyond 100 % are drawn at its edge."""
    reach = error_reach(values)
    assert 0.01 <= reach <= 1
    assert all(abs(value) <= reach or reach == 1 for value in values)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(0.0, "0 %"), (0.0042, "+0.42 %"), (-0.031, "−3.1 %"), (1.5, "+150 %"), (None, "–")],
)
def test_errors_in_print(error, expected):
    """Signed, with a true minus, and no more digits than they deserve."""
    assert error_text(error).replace("\u00a0", " ") == expected


@pytest.mark.parametrize(
    ("error", "noise", "limit", "expected"),
    [
        (0.0, None, None, "the same"),
        (0.01, 0.02, None, "within noise"),
        (0.01, None, None, "close"),
        (-0.04, 0.01, None, "fair"),
        (0.1, None, None, "off"),
        (-0.5, None, None, "far off"),
        (0.06, None, 0.05, "over the limit"),
        (0.06, 0.07, 0.05, "within noise"),
        (None, None, 0.05, ""),
    ],
)
def test_errors_in_words(error, noise, limit, expected):
    """Noise first, then 2, 5 and 15 percent; a limit overrules them."""
    assert verdict({"error": error, "noise": noise}, limit) == expected


def test_the_calibration_s_part_in_words():
    """Half the range over the prediction; a dash where nothing was drawn."""
    one = {"predicted": 2.0, "predicted_range": [1.9, 2.3]}
    assert calibration_text(one).replace("\u00a0", " ") == "± 10.0 %"
    assert calibration_text({"predicted": 2.0, "predicted_range": None}) == "–"
    drawn = {"makespan_s": {**one, "measured": 1.0, "error": 1.0, "noise": None}}
    head, rows = error_table(drawn)
    assert dict(zip(head, rows[0], strict=True))["calibration"].startswith("±")


def test_noise_and_steps_in_words():
    """A dash without several runs; all steps the same."""
    assert noise_text(None) == "–" and noise_text(0.012).replace("\u00a0", " ") == "± 1.2 %"
    assert steps_text({"compared": 292, "identical": 292, "first_difference": None}).startswith("All 292 steps")
