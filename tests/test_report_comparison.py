"""The table of variants, the headline and the warnings: what they claim follows from the summaries."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.report.comparison import ALL_MEASURES, KEY_MEASURES, all_rows, key_rows, measure_rows
from simserve.report.headline import badges, headline, source_sentence
from simserve.report.page import emphasised
from tests.report_builders import PROFILE, ROOFLINE, run_of


def summary(tokens_per_s=100.0, mean_e2e_s=1.0, **more):
    """The part of a summary that a headline reads."""
    return {
        "num_requests": 10,
        "num_finished": 10,
        "num_rejected": 0,
        "output_tokens_per_s": tokens_per_s,
        "e2e_s": {"mean": mean_e2e_s},
        "ttft_s": {"p50": 0.5},
        **more,
    }


def test_the_headline_names_the_faster_variant_and_both_ratios():
    """1.62 times the tokens at 0.11 of the latency, against the first variant."""
    text = headline({"static": summary(100, 9.0), "continuous": summary(162, 0.99)})
    assert text == "continuous serves 1.62× the output tokens/s of static at 0.11× the mean latency."


def test_variants_that_win_together_are_named_together():
    """A tie within one percent has no single winner."""
    text = headline({"s": summary(100, 9.0), "a": summary(162, 0.9), "b": summary(161.5, 0.9)})
    assert text.startswith("a and b serve 1.62×")


def test_among_equal_throughputs_the_latency_decides():
    """A server that keeps up emits what arrives, so throughput says nothing and the headline does not pretend."""
    text = headline({"s": summary(100, 2.0), "c": summary(100.4, 0.5)})
    assert text == "All variants keep up, at about 100 output tokens/s; c has 0.25× the mean latency of s."
    assert "the same mean latency" in headline({"s": summary(100, 2.0), "c": summary(100, 2.0)})


def test_a_first_variant_that_wins_is_said_to():
    """The runner-up is compared with it, without "beats" (its latency may be lower)."""
    text = headline({"s": summary(200, 1.0), "c": summary(100, 0.9), "d": summary(150, 2.0)})
    assert text == "s serves the most output tokens/s; d comes next with 0.75× of them, at 2.00× the mean latency."


def test_a_lone_variant_is_described_and_an_idle_run_too():
    """No comparison is made up."""
    assert headline({"only": summary()}).startswith("only serves 100 output tokens/s")
    assert headline({"only": summary(num_finished=0)}) == "No request was served."
    assert headline({"a": summary(num_finished=0), "b": summary()}).startswith("b serves")


def test_the_headline_s_emphasis_is_escaped_and_longest_names_win():
    """Names and ratios are bold, a name inside another is not, and HTML in a name is text."""
    html = emphasised("static-paged serves 1.62× of <b>x</b>", ["static", "static-paged", "<b>x</b>"])
    assert html == "<b>static-paged</b> serves <b>1.62×</b> of <b>&lt;b&gt;x&lt;/b&gt;</b>"


def test_a_measured_run_inside_its_range_has_no_badge():
    """Nothing to warn of: nothing warned of."""
    assert badges({"a": PROFILE}, {"a": summary(extrapolated_step_share=0.0)}) == []


def test_every_reason_for_caution_has_its_badge():
    """Uncalibrated, extrapolated (with its share of steps) and rejected requests are each called out by name."""
    found = badges(
        {"a": ROOFLINE, "b": PROFILE}, {"a": summary(), "b": summary(extrapolated_step_share=0.123, num_rejected=3)}
    )
    labels = {badge.label: badge.sentence.replace("\u00a0", " ") for badge in found}
    assert labels.keys() == {"uncalibrated", "extrapolated", "requests rejected"}
    assert labels["uncalibrated"].startswith("a: ") and ROOFLINE.note in labels["uncalibrated"]
    assert "12.3 % of the steps of b" in labels["extrapolated"]
    assert "b turned away 3 requests of 10" in labels["requests rejected"]


def test_what_was_changed_of_the_model_is_one_badge():
    """Heads, weights and memory that are not the model's own, each with the variants that have it; rooflines of which
    the same is said share their badge."""
    heads, weights = (
        "7 KV heads instead of the model's own 2",
        "weights kept as int4 (4.125 bits) and multiplied in bf16",
    )
    changes = {"a": [heads], "b": [heads, weights], "c": []}
    summaries = {name: {**summary(), "simulated_model": {"changes": each}} for name, each in changes.items()}
    sources = {"a": ROOFLINE, "b": replace(ROOFLINE, name="other"), "c": PROFILE}
    found = {badge.label: badge.sentence for badge in badges(sources, summaries)}
    assert found == {
        "uncalibrated": f"a and b: step times of toy-roofline and other are estimated. {ROOFLINE.note}",
        "changed model": f"a and b: {heads}; b: {weights}.",
    }


def test_a_source_says_whether_it_was_measured_and_how_well():
    """The held-out error stands beside the profile's name; a formula says so."""
    assert source_sentence(PROFILE).replace("\u00a0", " ") == "measured: toy-cpu on a small CPU, held-out error 3.1 %"
    assert source_sentence(replace(PROFILE, holdout_mape=None)).endswith("held-out error not known")
    assert source_sentence(ROOFLINE) == "estimated by toy-roofline for a large GPU"
    assert "off by 25" in source_sentence(replace(ROOFLINE, holdout_mape=0.25))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.001, 1e6), min_size=2, max_size=6))
def test_the_best_cell_is_the_best(values):
    """The marked cells hold the largest throughput and the smallest latency, and no mark where all agree."""
    summaries = {f"v{i}": summary(value, value) for i, value in enumerate(values)}
    rows = {row.measure.path: row.cells for row in measure_rows(summaries, KEY_MEASURES)}
    for path, best in (("output_tokens_per_s", max(values)), ("e2e_s.mean", min(values))):
        marked = [value for value, cell in zip(values, rows[path], strict=True) if cell.best]
        assert all(value == pytest.approx(best, rel=1e-3) for value in marked)
        assert bool(marked) == (max(values) - min(values) > 5e-4 * max(values))
        assert max(cell.percent for cell in rows[path]) == 100


def test_ratios_are_against_the_first_variant():
    """The first has none; half the latency is 0.50×."""
    cells = measure_rows({"a": summary(mean_e2e_s=4.0), "b": summary(mean_e2e_s=2.0)}, KEY_MEASURES)
    ratios = {row.measure.path: [cell.ratio for cell in row.cells] for row in cells}
    assert ratios["e2e_s.mean"] == ["", "0.50×"]


def test_every_measure_exists_in_a_real_summary():
    """Each path of the tables is one that metrics really writes: a renamed key would vanish without a word. Those of
    speculation and of the model's own numbers, which this run does not have, are held by test_chapter_figures.py,
    those of tenants by test_report_tenants.py."""
    found = {"v": next(iter(run_of().variants.values())).summary}
    elsewhere = ("speculation.", "model_macs", "simulated_model.", "fairness.")
    wanted = [measure for measure in (*KEY_MEASURES, *ALL_MEASURES) if not measure.path.startswith(elsewhere)]
    assert [row.measure.path for row in measure_rows(found, wanted)] == [measure.path for measure in wanted]


def test_goodput_is_shown_when_somebody_asked_for_it():
    """Without an SLO every request meets every SLO, which is no news."""
    found = {"v": next(iter(run_of().variants.values())).summary}
    paths = {has: {row.measure.path for row in [*key_rows(found, has), *all_rows(found, has)]} for has in (True, False)}
    assert paths[True] - paths[False] == {"goodput_rps", "slo_attainment"}


def test_what_variants_push_and_hold_stands_in_front_where_they_differ():
    """A run without a cache beside one with it: tokens computed; the same engine twice: no such row."""

    def rows(*computed):
        found = {f"v{i}": {**summary(), "computed_tokens": tokens} for i, tokens in enumerate(computed)}
        return [row.measure.path for row in key_rows(found, has_slo=False)]

    assert "computed_tokens" in rows(767, 163_712)
    assert "computed_tokens" not in rows(767, 767)


def test_rows_of_speculation_come_with_it():
    """Tokens per pass, and the most is the best; nothing of the kind without."""
    each = {"a": {**summary(), "speculation": None}, "b": {**summary(), "speculation": {"tokens_per_pass": 3.5}}}
    cells = {row.measure.path: row.cells for row in key_rows(each, has_slo=False)}["speculation.tokens_per_pass"]
    assert [(cell.text, cell.best) for cell in cells] == [("–", False), ("3.50", False)]
    assert "speculation.tokens_per_pass" not in {row.measure.path for row in key_rows({"a": each["a"]}, False)}
