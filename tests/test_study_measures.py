"""Measures in words and on axes: names, units, intervals, scales, settings, links."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.report.study_content import report_link
from simserve.report.study_dims import KEYS, dim
from simserve.report.study_measures import Measure, dotted, interval_of, interval_text, known, measure_of
from simserve.report.study_words import load_measure, settings_text, source_words, study_badges, told_load
from simserve.report.sweep_data import columns, on_curve
from tests.study_documents import ESTIMATED, MEASURED, interval
from tests.study_pages import numbers_in

SECONDS = Measure("ttft_s.p99", "TTFT p99", "duration")


@pytest.mark.parametrize(
    ("path", "label", "kind"),
    [
        ("ttft_s.p99", "TTFT p99", "duration"),
        ("ttft_p99", "TTFT p99", "duration"),
        ("queue_time_s.mean", "queue time mean", "duration"),
        ("queue_time_mean", "queue time mean", "duration"),
        ("output_tokens_per_s", "output tokens/s", "compact"),
        ("slo_attainment", "requests that met the SLO", "portion"),
        ("something_new", "something_new", "compact"),
        ("warm_up_s", "warm_up_s", "duration"),
    ],
)
def test_measures_have_the_field_s_names_and_units(path, label, kind):
    """Dotted paths and the way people type SLOs mean the same; an unknown measure goes by its path."""
    assert (measure_of(path).label, measure_of(path).kind) == (label, kind)


def test_a_throughput_is_no_statistic_of_a_family():
    """Only latencies are dotted: ``output_tokens_per_s`` stays as it is."""
    assert dotted("output_tokens_per_s") == "output_tokens_per_s" and dotted("e2e_p50") == "e2e_s.p50"


@given(st.floats(1e-6, 1e5), st.floats(0, 0.9))
def test_an_interval_in_words_says_value_low_and_high(value, spread):
    """Read back, the three numbers are the document's within the half percent that three digits keep."""
    text = interval_text(interval(value, spread), SECONDS)
    wanted = [value, value * (1 - spread), value * (1 + spread)]
    assert numbers_in(text) == [pytest.approx(number, rel=5.1e-3, abs=1e-12) for number in wanted]


def test_what_is_not_known_is_a_dash():
    """No value: a dash; no bounds: the value alone; no interval at all: a dash."""
    assert interval_text({"value": None, "low": None, "high": None, "n": 3}, SECONDS) == "–"
    assert interval_text(None, SECONDS) == "–"
    assert interval_text(interval(2.0, n=1), SECONDS).replace("\u00a0", " ") == "2.00 s"


def test_a_bare_number_is_an_interval_of_itself():
    """Rows of capacity hold plain numbers beside intervals."""
    assert interval_of({"a": 3}, "a") == {"value": 3} and interval_of({"a": None}, "a") == {}


def test_only_measures_with_numbers_are_known():
    """A measure that is null at every point gets no chart."""
    points = [{"metrics": {"kv_used": interval(None), "goodput_rps": interval(1.0)}}]
    assert [m.path for m in known(points, ["kv_used", "goodput_rps", "mean_running"])] == ["goodput_rps"]


@given(st.lists(st.floats(1e-7, 1e6), min_size=1, max_size=30), st.sampled_from(["duration", "compact", "portion"]))
def test_an_axis_holds_its_values(values, kind):
    """The domain covers every value and the ticks lie inside it; a scale is logarithmic only over positive numbers."""
    axis = dim(Measure("m", "m", kind), "c", values)
    low, high = axis["domain"]
    assert low <= min(values) and max(values) <= high * (1 + 1e-4)
    assert all(low * (1 - 1e-4) <= tick <= high * (1 + 1e-4) for tick in axis["ticks"])
    assert axis["scale"] == "linear" or low > 0
    assert set(KEYS) == set(axis)


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0]])
def test_an_axis_of_nothing_can_be_drawn(values):
    """Zeros only, or no number: a plain linear axis with room."""
    axis = dim(SECONDS, "c", values, log=True)
    assert axis["scale"] == "linear" and axis["domain"][1] > 0


def test_wide_durations_are_logarithmic_and_say_so():
    """A factor above 30 (queueing near saturation) on a logarithmic axis, less on a linear one, as the report does."""
    assert dim(SECONDS, "c", [0.1, 5.0])["scale"] == "log"
    assert dim(SECONDS, "c", [0.1, 5.0])["title"].endswith("logarithmic")
    assert dim(SECONDS, "c", [0.1, 1.0])["scale"] == "linear"


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0, 1), st.sampled_from(["linear", "log"]))
def test_a_mark_on_a_curve_lies_between_its_neighbours(first, second, way, scale):
    """Wherever between two points, the height is between theirs, and at a point it is the point's."""
    at = 1 + way
    height = on_curve([1.0, 2.0], [first, second], at, ("linear", scale))
    assert min(first, second) * (1 - 1e-9) <= height <= max(first, second) * (1 + 1e-9)
    assert on_curve([1.0, 2.0], [first, second], 1.0, (scale, scale)) == pytest.approx(first)


def test_a_mark_is_straight_as_the_scale_shows_it():
    """Half-way between 1 and 100 is 50.5 on a linear axis and 10 on a logarithmic one; on a logarithmic x, 2 lies
    half-way between 1 and 4."""
    assert on_curve([0.0, 2.0], [1.0, 100.0], 1.0) == pytest.approx(50.5)
    assert on_curve([0.0, 2.0], [1.0, 100.0], 1.0, ("linear", "log")) == pytest.approx(10)
    assert on_curve([1.0, 4.0], [0.0, 1.0], 2.0, ("log", "linear")) == pytest.approx(0.5)


@pytest.mark.parametrize("at", [0.5, 4.5])
def test_no_mark_off_the_curve(at):
    """Outside the loads, or beside an unknown value, there is none."""
    assert on_curve([1.0, 2.0, 4.0], [1.0, 1.0, 1.0], at) is None
    assert on_curve([0.0, 5.0], [1.0, None], at) is None


def test_settings_are_named_by_their_last_word_where_it_is_clear():
    """Two keys with the same last word keep their whole paths; the load is left out."""
    plain = settings_text({"workload.arrivals.rate_rps": 4.0, "engine.max_num_seqs": 8}, "workload.arrivals.rate_rps")
    assert plain == "max_num_seqs\u00a08"
    twice = settings_text({"a.limit": 1, "b.limit": None}).replace("\u00a0", " ")
    assert twice == "a.limit 1, b.limit none"
    assert settings_text({"workload.output_tokens.fixed": 64}).replace("\u00a0", " ") == "output_tokens.fixed 64"
    assert settings_text({}) == "settings of the scenario"


def test_loads_have_their_units():
    """By the last word of the key, or as the document says."""
    assert load_measure("workload.concurrency").label == "clients at once"
    assert told_load({"key": "k", "label": "rate scale", "unit": "×"}).label == "rate scale, ×"
    assert told_load({"key": "k", "label": "concurrent clients", "unit": "clients"}).label == "concurrent clients"


def test_estimated_step_times_are_said_once_per_source():
    """Uncalibrated: the variants that use it, named in one badge; extrapolated: the worst share of each variant."""
    outside = {"extrapolated_step_share": interval(0.25)}
    badges = study_badges(
        {"a": ESTIMATED, "b": MEASURED, "c": ESTIMATED}, [("b", outside), ("b", {"extrapolated_step_share": {}})]
    )
    assert [badge.label for badge in badges] == ["uncalibrated", "extrapolated"]
    assert badges[0].sentence == "a and c: step times of h100-roofline are estimated, not measured."
    assert "25 % of the steps of b" in badges[1].sentence.replace("\u00a0", " ")
    assert study_badges({"b": MEASURED}, [("b", {"extrapolated_step_share": interval(0.0)})]) == []


def test_sources_say_how_far_off_they_are():
    """Measured with its held-out error; estimated with the error where it was checked."""
    assert "held-out error 3.1" in source_words(MEASURED)
    assert source_words({**MEASURED, "holdout_mape": None}).endswith("held-out error not known")
    assert source_words(ESTIMATED) == "estimated by h100-roofline for H100"
    assert "off by 12 %" in source_words({**ESTIMATED, "holdout_mape": 0.12}).replace("\u00a0", " ")


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "https://x.example/",
        "//x.example/a",
        "/etc/passwd",
        "../../a.html",
        "a/../../b",
        "",
        None,
    ],
)
def test_a_report_outside_the_folder_is_no_link(address):
    """Schemes, hosts, absolute and climbing paths are refused."""
    assert report_link(address) is None


@given(st.text(max_size=40))
def test_a_link_is_a_plain_relative_path(address):
    """Whatever the document says, the link can start no scheme and leave no attribute."""
    link = report_link(address)
    assert link is None or (":" not in link.split("/")[0] and not set(link) & set("\"'<>& ") and link[0] != "/")


def test_columns_are_rows_turned():
    """Every row comes back, null where it had nothing."""
    assert columns([{"a": 1}, {"b": 2}]) == {"a": [1, None], "b": [None, 2]} and columns([]) == {}


def test_numbers_are_read_back():
    """The test's own reader: units, separators, several numbers."""
    assert numbers_in("1,200 (300\u00a0ms to 2.00\u00a0min) and 5\u00a0%") == pytest.approx([1200, 0.3, 120, 0.05])
    assert not math.isnan(numbers_in("0\u00a0s")[0])
