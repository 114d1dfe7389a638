"""What the charts draw is what the run recorded: slots, cache shares, step times, lines."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from simserve.metrics import timeline
from simserve.report import slots
from simserve.report.cache import PARTS, cache_figures, mean_shares
from simserve.report.latency import latency_figures
from simserve.report.load import load_figures
from simserve.report.slots import PHASES, occupancy_bars, slot_figures, slot_shares, slot_table
from simserve.report.style import variant_styles
from simserve.report.surface import Surface, surface_figures
from simserve.report.traffic import traffic_figures, traffic_sentence
from tests.builders import run_engine
from tests.report_builders import PAGED, POLICIES, PROFILE, ROOFLINE, STATIC, SourcedStepTime, run_of, skewed_table
from tests.strategies import cases

S = 1_000_000_000


@pytest.fixture(scope="module")
def run():
    return run_of()


def parts_of(run):
    """Styles, records, timelines and summaries of a run, by variant."""
    records = {name: variant.records for name, variant in run.variants.items()}
    timelines = {name: timeline(record) for name, record in records.items()}
    return variant_styles(run.variants), records, timelines, {n: v.summary for n, v in run.variants.items()}


def rows_of(spec):
    """The rows of a chart's own data set, the largest if a layer brings another."""
    return max(spec["datasets"].values(), key=len)


def test_the_first_eight_styles_differ_in_colour_and_dash():
    """Nobody has to tell variants apart by colour alone, and the 64 first styles are all different."""
    styles = variant_styles(f"n{i}" for i in range(64))
    assert len({style.color for style in styles[:8]}) == len({style.dash for style in styles[:8]}) == 8
    assert len({(style.color, style.dash) for style in styles}) == 64


def test_a_style_belongs_to_its_place():
    """The same variant looks the same in every chart and in every page with the same variants."""
    assert variant_styles(["a", "b"]) == variant_styles(["a", "b"])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases())
def test_bars_cover_every_stay_once(case):
    """The phases of all stays last as long as the stays, begin and end inside them, and never overlap in a slot."""
    columns = run_engine(case.table, case.settings, case.step_time).occupancy.columns()
    bars = occupancy_bars(columns)
    assert (bars.end_ns > bars.begin_ns).all()
    assert (bars.end_ns - bars.begin_ns).sum() == (columns["released_ns"] - columns["admitted_ns"]).sum()
    for _, slot in bars.sort_values("begin_ns").groupby("slot"):
        assert (slot.begin_ns.to_numpy()[1:] >= slot.end_ns.to_numpy()[:-1]).all()


def test_only_static_batching_holds_slots_idle(run):
    """Finished members keep their slot under static batching and leave at once under continuous batching."""
    idle = {name: slot_shares(variant.records)["idle-held"] for name, variant in run.variants.items()}
    assert idle["static-paged"] > 0.2 and idle["continuous-paged"] == 0


def test_slot_shares_are_shares(run):
    """Phases and emptiness of each variant add up to the whole."""
    for variant in run.variants.values():
        shares = slot_shares(variant.records)
        assert set(shares) == set(PHASES) and 0 < sum(shares.values()) <= 1 + 1e-12


def test_the_slot_chart_has_every_bar(run):
    """Rows of the Gantt chart are the bars of the occupancy table, slots counted from one."""
    styles, records, _, _ = parts_of(run)
    figures, sentence = slot_figures(styles, records)
    assert len(figures) == 4 and sentence == ""
    rows = rows_of(figures[0].spec)
    assert len(rows) == len(occupancy_bars(records["static-contiguous"].occupancy.columns()))
    assert {row["slot"] for row in rows} == set(range(1, 9))
    assert {row["request"] for row in rows} == set(range(64))


def test_slot_charts_share_one_clock(run):
    """A shorter run ends earlier on the page: all Gantt charts have the longest run's time axis."""
    styles, records, _, _ = parts_of(run)
    ends = {
        str(figure.spec["layer"][0]["encoding"]["x"]["scale"]["domain"]) for figure in slot_figures(styles, records)[0]
    }
    assert len(ends) == 1


def test_a_large_run_says_why_it_has_no_slot_chart(monkeypatch, run):
    """Left out with a sentence that names it; the table of slot-time stays."""
    monkeypatch.setattr(slots, "MAX_BARS", 50)
    styles, records, _, _ = parts_of(run)
    figures, sentence = slot_figures(styles, records)
    assert figures == [] and "at most 50 bars" in sentence and "continuous-paged" in sentence
    assert len(slot_table(styles, records).rows) == 4


def test_cache_shares_add_up_to_the_cache(run):
    """Filled, reserved, never filled, unusable and free are the whole cache, on average and in every bin."""
    styles, _, timelines, summaries = parts_of(run)
    for name in summaries:
        assert sum(mean_shares(summaries[name]).values()) == pytest.approx(1)
    for figure in cache_figures(styles, timelines, summaries)[1:]:
        for row in rows_of(figure.spec):
            assert sum(row[part.key] for part in PARTS) == pytest.approx(1, abs=1e-3)


def test_a_contiguous_cache_shows_its_waste(run):
    """Over-declared outputs are never filled in a contiguous cache; a paged one wastes less than a block a request."""
    _, _, _, summaries = parts_of(run)
    contiguous, paged = mean_shares(summaries["static-contiguous"]), mean_shares(summaries["static-paged"])
    assert contiguous["used"] == pytest.approx(paged["used"])
    assert contiguous["internal"] > 10 * paged["internal"]


def test_lines_over_time_keep_the_tokens(run):
    """The area under a throughput line is the number of tokens emitted (the last bin of a variant may be cut short)."""
    styles, records, timelines, summaries = parts_of(run)
    spec = load_figures(styles, timelines, summaries)[0].spec
    rows = rows_of(spec)
    width = rows[1]["t"] - rows[0]["t"]
    for style in styles:
        emitted = sum(row.get(style.key, 0) for row in rows) * width
        tokens = int(records[style.name].requests.num_emitted_tokens.sum())
        assert emitted == pytest.approx(tokens, rel=0.02)


def test_a_curve_ends_with_its_run(run):
    """The faster variant's line stops where its last answer was delivered instead of dropping to zero."""
    styles, _, timelines, summaries = parts_of(run)
    rows = rows_of(load_figures(styles, timelines, summaries)[3].spec)
    assert rows[-1].keys() == {"t", "v0", "v1"}


def test_latency_curves_hold_the_percentiles_of_the_summary(run):
    """The point at 99 % is the summary's p99."""
    styles, records, _, summaries = parts_of(run)
    figures = {figure.id: figure for figure in latency_figures(styles, records, summaries, run.scenario.slo)}
    for name in ("ttft", "tpot", "e2e"):
        (row,) = [row for row in rows_of(figures[f"latency-{name}"].spec) if row["p"] == 0.99]
        for style in styles:
            assert row[style.key] == pytest.approx(summaries[style.name][f"{name}_s"]["p99"], rel=1e-4)


def test_gaps_between_tokens_stay_within_a_bin_of_the_summary(run):
    """ITL is kept in bins one percent wide, so its curve agrees with the summary's percentiles within two."""
    styles, records, _, summaries = parts_of(run)
    figures = {figure.id: figure for figure in latency_figures(styles, records, summaries, run.scenario.slo)}
    (row,) = [row for row in rows_of(figures["latency-itl"].spec) if row["p"] == 0.95]
    for style in styles:
        assert row[style.key] == pytest.approx(summaries[style.name]["itl_s"]["p95"], rel=0.02)


def test_a_latency_that_nobody_has_gets_no_chart():
    """One-token answers have no TPOT and no gaps."""
    table = skewed_table(20)
    one = replace(table, num_output_tokens=np.ones(20, np.int64))
    styles, records, _, summaries = parts_of(run_of({"c": PAGED}, one))
    ids = [figure.id for figure in latency_figures(styles, records, summaries, None)]
    assert ids == ["latency-ttft", "latency-e2e"]


def test_step_time_curves_are_the_model_and_marks_are_the_measurements():
    """Curves pass through what the model says, marks through what was measured, and the axis holds both."""
    surface = Surface("m", SourcedStepTime(), PROFILE, 300, 8, 64)
    context, batch, prefill = (figure.spec for figure in surface_figures(surface))
    decodes = [point for point in PROFILE.points if point.phase == "decode"]
    curves, marks = context["datasets"].values()
    at = {(row["series"], row["x"]): row["y"] for row in curves}
    assert at["8", 1024] == pytest.approx(surface.decode_s(8, 1024), rel=1e-4)
    assert sorted(row["y"] for row in marks) == pytest.approx(sorted(point.seconds for point in decodes), rel=1e-4)
    assert {row["x"] for row in list(batch["datasets"].values())[1]} == {1, 2, 4, 8, 16}
    assert {row["series"] for row in next(iter(prefill["datasets"].values()))} == {"0", "512"}


def test_a_formula_has_curves_and_no_marks():
    """Nothing was measured, so nothing is drawn as if it had been."""
    for figure in surface_figures(Surface("m", SourcedStepTime(ROOFLINE), ROOFLINE, 300, 8, 64)):
        assert len(figure.spec["datasets"]) == 1 and figure.keys


def test_arrivals_and_lengths_are_those_of_the_workload():
    """Every arrival is in one bar; the lengths' table holds their sums."""
    table = skewed_table()
    arrivals, lengths = traffic_figures(table)
    assert sum(row["count"] for row in rows_of(arrivals.spec)) == 64
    assert lengths.table.rows[1][-1] == f"{table.num_output_tokens.sum():,}"
    assert traffic_sentence(table).startswith("64 requests over ")


def test_everyone_at_once_has_no_arrival_chart():
    """There is no rate to draw."""
    table = skewed_table()
    burst = replace(table, arrival_ns=np.zeros(64, np.int64))
    assert [figure.id for figure in traffic_figures(burst)] == ["traffic-lengths"]
    assert "all at once" in traffic_sentence(burst)
    assert "from 1 client in a closed loop" in traffic_sentence(burst, concurrency=1)


@pytest.mark.parametrize("policies", [{"one": STATIC}, POLICIES])
def test_captions_say_what_charts_show(policies):
    """Each figure has a title and a sentence with a number in it: the text alternative of the chart."""
    styles, records, timelines, summaries = parts_of(run_of(policies))
    figures = [
        *latency_figures(styles, records, summaries, None),
        *load_figures(styles, timelines, summaries),
        *cache_figures(styles, timelines, summaries),
        *slot_figures(styles, records)[0],
    ]
    assert len({figure.id for figure in figures}) == len(figures)
    for figure in figures:
        assert figure.title and any(char.isdigit() for char in figure.caption), figure.id
