"""What a run pushed through the model, on its page: parts that add up, and figures only where there is news."""

import altair as alt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.report.part_bars import Bars, Part, bars_figure
from simserve.report.work import token_parts, work_figures
from tests.report_builders import run_of

WITH = {"computed_tokens": 767, "recomputed_tokens": 0, "abandoned_tokens": 0, "model_macs": 4e11}
WITHOUT = {"computed_tokens": 163_712, "recomputed_tokens": 162_945, "abandoned_tokens": 0, "model_macs": 9e13}
counts = st.integers(0, 10_000)


def drafting(per_pass=3.2, rejected=400):
    """A summary of a variant that speculates."""
    passes = {"num_passes": 100, "tokens_per_pass": per_pass, "acceptance_rate": 0.7, "rejected_tokens": rejected}
    return {**WITH, "computed_tokens": 767 + rejected, "speculation": passes}


def by_id(figures):
    return {figure.id: figure for figure in figures}


def test_the_chapters_tokens_with_and_without_a_cache():
    """767 against 163,712, 213 times, in words, in the table and in the chart; all of the 767 are needed."""
    figure = by_id(work_figures({"with": WITH, "without": WITHOUT}, {}))["work-tokens"]
    assert "163,712 tokens (213×) with without" in figure.caption and "767 tokens (1.00×)" in figure.caption
    assert figure.table.head == ("variant", "needed once", "computed again", "in all")
    assert figure.table.rows == (("with", "767", "0", "767"), ("without", "767", "162,945", "163,712"))


@given(st.lists(counts, min_size=4, max_size=4))
def test_the_parts_of_the_tokens_add_up(parts):
    """Needed, again, rejected and for nobody: all computed tokens, each once."""
    needed, again, rejected, lost = parts
    summary = {"computed_tokens": sum(parts), "recomputed_tokens": again, "abandoned_tokens": lost}
    found = token_parts({**summary, "speculation": {"rejected_tokens": rejected}})
    assert list(found.values()) == [needed, again, rejected, lost]


def test_multiply_adds_in_words():
    """Large numbers have names."""
    caption = by_id(work_figures({"with": WITH, "without": WITHOUT}, {}))["work-macs"].caption
    assert "400\u00a0billion with with; 90.0\u00a0trillion with without" in caption


def test_variants_that_do_the_same_work_get_no_figure():
    """The same engine under two names, and a page without speculation."""
    assert work_figures({"a": WITH, "b": dict(WITH)}, {}) == []
    run = run_of()
    assert {figure.id for figure in work_figures({n: v.summary for n, v in run.variants.items()}, {})} <= {
        "work-tokens"
    }


def test_tokens_per_pass_with_the_formula_s_mark():
    """Simulated 3.2 beside the closed form's 3.36; plain variants have no bar."""
    figure = by_id(work_figures({"plain": WITH, "drafts": drafting()}, {"drafts": 3.3616}))["work-passes"]
    assert figure.table.rows == (("drafts", "1", "2.20", "3.20", "3.36"),)
    assert figure.keys[-1].label == "by the formula"
    assert "70\u00a0% of the drafts accepted" in figure.caption


@pytest.mark.parametrize("expected", [{}, {"drafts": 3.3}])
def test_charts_are_valid_vega_lite(expected):
    """Against the schema, with and without marks."""
    for figure in work_figures({"plain": WITH, "no-cache": WITHOUT, "drafts": drafting()}, expected):
        alt.Chart.from_dict(figure.spec, validate=True)


def test_parts_that_nobody_has_are_left_out():
    """No legend for one part alone, no column of zeros."""
    parts = (Part("a", "var(--c0)"), Part("b", "var(--c1)"))
    figure = bars_figure(Bars("x", "X", "things", parts, {"v": {"a": 2.0, "b": 0.0}}, "Two things."))
    assert figure.table.head == ("variant", "a") and figure.keys == ()
