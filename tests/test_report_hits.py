"""Charts of the prefix cache: what became of what was looked up, and hit rates over time beside their bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simserve.metrics import timeline
from simserve.report.hits import BOUND, EVICTED, FOUND, NEW, PENDING, hit_figures, look_up_parts, shares_over_time
from simserve.report.style import variant_styles
from tests.prefix_rules import asks
from tests.report_builders import PAGED, run_of

LETTERS = "ABCDEFGH"
SHARING = replace(PAGED, policy="chunked", block_size=4, prefix_caching=True, max_num_seqs=1)


@pytest.fixture(scope="module")
def run():
    """Every prompt comes three times, in turn, back, and in turn; one cache holds three prompts, the other all."""
    prompts = [(LETTERS[i:] + LETTERS[:i], 1) for i in (*range(8), *reversed(range(8)), *range(8))]
    table = asks(*prompts, at=[20 * i for i in range(len(prompts))])
    settings = {"small": replace(SHARING, num_blocks=32), "large": SHARING, "off": replace(PAGED, block_size=4)}
    return run_of(settings, table)


def figures_of(run, *names):
    names = names or tuple(run.variants)
    styles = [style for style in variant_styles(run.variants) if style.name in names]
    timelines = {name: timeline(variant.records) for name, variant in run.variants.items()}
    summaries = {name: variant.summary for name, variant in run.variants.items()}
    return timelines, summaries, hit_figures(styles, timelines, summaries)


def rows_of(figure):
    return max(figure.spec["datasets"].values(), key=len)


def test_parts_are_all_that_was_looked_up(run):
    """24 prompts of 33 tokens; the second and third time a cache for all finds 32 of each. The small one lost some."""
    _, summaries, figures = figures_of(run)
    small, large = (look_up_parts(summaries[name]) for name in ("small", "large"))
    assert large == {FOUND.name: 16 * 32, EVICTED.name: 0, PENDING.name: 0, NEW.name: 24 * 33 - 16 * 32}
    assert sum(small.values()) == 24 * 33
    assert small[FOUND.name] + small[EVICTED.name] == 16 * 32 and small[EVICTED.name] > small[FOUND.name] > 0
    bars = figures[0]
    assert bars.table is not None and [row[0] for row in bars.table.rows] == ["small", "large"]
    assert "computed again" in bars.caption.lower() and "none with large" in bars.caption


def test_one_chart_per_variant_that_looks_up(run):
    """All side by side, then each with its bound; the one without prefix caching has none."""
    _, _, figures = figures_of(run)
    assert [figure.id for figure in figures[:2]] == ["hits-parts", "hits-rate"]
    assert [figure.title for figure in figures[2:]] == ["Prefix hits: small", "Prefix hits: large"]
    assert [key.label for key in figures[2].keys] == [FOUND.name, EVICTED.name, BOUND.label]
    assert [key.label for key in figures[3].keys] == [FOUND.name, BOUND.label]
    assert figures_of(run, "off")[2] == []
    assert [figure.id for figure in figures_of(run, "large")[2]] == ["hits-parts", "hits-v1"]


def test_what_is_drawn_is_found_lost_and_bound(run):
    """In every spell found ≤ found + evicted ≤ bound; at first nothing is found, at the end the large cache finds its
    bound; weighted by what was looked up the shares are the summary's."""
    timelines, summaries, figures = figures_of(run)
    for figure in figures[2:]:
        rows = rows_of(figure)
        assert all(0 <= row["found"] <= row["lost"] <= row["bound"] + 1e-5 < 1 for row in rows)
        assert rows[0]["found"] == 0
    assert rows[-1]["found"] == rows[-1]["bound"] > 0.9
    for name in ("small", "large"):
        end_s = float(timelines[name]["end_s"].iloc[-1])
        shares = shares_over_time(timelines[name], np.linspace(0, end_s, 11))
        found = np.nansum(shares["found"] * shares["looked_up"]) / np.nansum(shares["looked_up"])
        assert found == pytest.approx(summaries[name]["kv_cache"]["prefix_hit_rate"])


def test_where_nothing_is_looked_up_nothing_is_drawn(run):
    """Long after the last admission there is no rate, not a rate of nought."""
    timelines, _, _ = figures_of(run)
    shares = shares_over_time(timelines["large"], np.linspace(0, 1000, 4))
    assert np.isnan(shares["found"][1:]).all() and not np.isnan(shares["found"][0])
