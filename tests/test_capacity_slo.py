"""SLOs as typed, and how much of its limit a run uses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.capacity.slo import LATENCIES, STATISTICS, WORST, SloError, parse_slo, parse_slos
from simserve.scenario import SloConfig

NOTHING, OWN = SloConfig(), SloConfig(ttft_s=1.0, tpot_s=0.05)


@pytest.mark.parametrize(
    ("text", "metric", "limit"),
    [
        ("ttft_p99=1s", "ttft_s.p99", 1.0),
        ("tpot_mean=50ms", "tpot_s.mean", 0.05),
        ("itl_p99 = 200 ms", "itl_s.p99", 0.2),
        ("e2e_p95=2", "e2e_s.p95", 2.0),
        ("queue_time_p50=.5", "queue_time_s.p50", 0.5),
        ("queue_time_s.p50=1e-1s", "queue_time_s.p50", 0.1),
        ("ttft_p90=250us", "ttft_s.p90", 250e-6),
        ("e2e_mean=1min", "e2e_s.mean", 60.0),
        ("attainment=99%", "slo_attainment", 0.99),
        ("attainment=0.9", "slo_attainment", 0.9),
        ("slo_attainment=0.9", "slo_attainment", 0.9),
        ("tenant_attainment=95%", "lowest_slo_attainment", 0.95),
    ],
)
def test_slos_are_read_with_their_units(text, metric, limit):
    """A bare number is seconds; attainment is a share."""
    slo = parse_slo(text)
    assert (slo.metric, slo.limit) == (metric, pytest.approx(limit))


@given(
    st.sampled_from(LATENCIES),
    st.sampled_from(STATISTICS),
    st.integers(1, 10**6),
    st.sampled_from([("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("", 1.0)]),
)
def test_what_an_slo_prints_reads_as_itself(latency, statistic, number, unit):
    """text → SLO → text → SLO is the identity, for every metric and unit."""
    slo = parse_slo(f"{latency}_{statistic}={number}{unit[0]}")
    assert (slo.metric, slo.limit) == (f"{latency}_s.{statistic}", pytest.approx(number * unit[1]))
    assert parse_slo(slo.text) == slo


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttft_p99", "METRIC=VALUE"),
        ("=1s", "METRIC=VALUE"),
        ("ttft_p99=", "METRIC=VALUE"),
        ("ttft_p98=1s", "did you mean 'ttft_p99'?"),
        ("tftt_p99=1s", "did you mean 'ttft_p99'?"),
        ("speed=1s", "known: ttft_mean"),
        ("ttft_p99=fast", "must be a time such as 1s, 50ms"),
        ("ttft_p99=1h", "must be a time"),
        ("ttft_p99=-1s", "must be a time"),
        ("ttft_p99=nan", "must be a time"),
        ("ttft_p99=0", "between 1 ns and"),
        ("attainment=100%", "99.9% is nearly all"),
        ("attainment=99", "below 100%"),
        ("attainment=1s", "must be a share"),
        ("tenant_attainment=1s", "must be a share"),
        ("tenant_attainmnt=99%", "did you mean 'tenant_attainment'?"),
    ],
)
def test_a_wrong_slo_is_one_sentence(text, says):
    """It repeats what was typed, and says the rule and the remedy."""
    with pytest.raises(SloError) as caught:
        parse_slo(text)
    message = str(caught.value)
    assert message.startswith(f"--slo {text}: ") and says in message and "\n" not in message


@given(st.text(max_size=30))
def test_any_text_is_an_slo_or_one_sentence(text):
    """No input ends in a traceback."""
    try:
        assert parse_slo(text).limit > 0
    except SloError as error:
        assert "\n" not in str(error) and str(error).isprintable()


def test_the_scenario_s_own_slo_is_held_at_p99_and_said():
    """Without --slo."""
    slos, note = parse_slos([], OWN)
    assert [(slo.metric, slo.limit) for slo in slos] == [("ttft_s.p99", 1.0), ("tpot_s.p99", 0.05)]
    assert note is not None and "ttft_p99=1s, tpot_p99=0.05s" in note


def test_slos_of_the_command_replace_the_scenario_s():
    """And need no note."""
    slos, note = parse_slos(["e2e_p95=3s"], OWN)
    assert ([slo.metric for slo in slos], note) == (["e2e_s.p95"], None)


@pytest.mark.parametrize(
    ("texts", "own", "says"),
    [
        ([], NOTHING, "must be given where the scenario has no slo"),
        (["ttft_p99=1s", "ttft_p99=2s"], OWN, "each metric once"),
        (["attainment=99%"], NOTHING, "needs the scenario's slo"),
    ],
)
def test_slos_that_do_not_fit_together(texts, own, says):
    """Nothing to hold, one metric twice, nothing to attain: a sentence each."""
    with pytest.raises(SloError, match=says):
        parse_slos(texts, own)


def test_tenants_limits_are_held_for_each_of_them_and_said():
    """Without --slo, where a tenant has limits of its own, each must have them kept for 99 % of its requests; where
    none has, the scenario's own count as ever."""
    slos, note = parse_slos([], OWN, [NOTHING, SloConfig(e2e_s=3.0)])
    assert [(slo.metric, slo.limit) for slo in slos] == [("lowest_slo_attainment", pytest.approx(0.99))]
    assert note == "no --slo: each tenant's limits for 99 % of its requests (tenant_attainment=99%)"
    assert parse_slos([], OWN, [NOTHING, NOTHING]) == parse_slos([], OWN)


@pytest.mark.parametrize(
    ("text", "own", "tenants", "says"),
    [
        (
            "tenant_attainment=99%",
            OWN,
            [],
            "needs workload.tenants or a trace.s column tenant; for all",
        ),
        ("tenant_attainment=99%", NOTHING, [NOTHING], "needs the scenario's slo: to attain"),
        ("attainment=99%", NOTHING, [NOTHING], "needs the scenario's slo: to attain"),
    ],
)
def test_attainment_needs_somebody_who_was_promised_something(text, own, tenants, says):
    """No limits anywhere, or no tenants: a sentence each. With a tenant's limits alone both are fine."""
    with pytest.raises(SloError, match=says):
        parse_slos([text], own, tenants)
    slos, note = parse_slos(["attainment=99%", "tenant_attainment=95%"], NOTHING, [OWN])
    assert ([slo.text for slo in slos], note) == (["attainment=99%", "tenant_attainment=95%"], None)


def quantiles(p99, lost=0.0):
    return {"p99": p99, "answered_mean": 0.2, "lost_share": lost}


def run(**changes):
    measures = {
        "num_finished": 10,
        "unanswered_share": 0.0,
        "slo_attainment": 0.97,
        "ttft_s": {"mean": 0.2, "p99": 0.5},
        "tpot_s": {"mean": None, "p99": None},
        "slo_quantiles": {"ttft_s": quantiles(0.5), "tpot_s": quantiles(None)},
        "backlog": {"grows": False, "stopped_early": False},
    }
    return {**measures, **changes}


def test_the_used_share_is_figure_over_limit():
    """0.5 s of 2 s; 3 % may-fail of 1 %."""
    assert parse_slo("ttft_p99=2s").ratio(run()) == 0.25
    assert parse_slo("ttft_mean=2s").ratio(run()) == pytest.approx(0.1)
    assert parse_slo("attainment=99%").ratio(run()) == pytest.approx(3.0)


def test_the_worst_served_tenant_counts():
    """Of all 97 % were within limits, of one tenant 90 %: that is what 95 % for each are held against. A run without
    tenants attains nothing for them."""
    slo = parse_slo("tenant_attainment=95%")
    assert slo.ratio(run(lowest_slo_attainment=0.9)) == pytest.approx(2.0)
    assert slo.ratio(run()) == WORST
    assert slo.lost_share(run()) == 0.0


def test_unanswered_requests_are_infinitely_late():
    """A quantile that reaches them is null, and so is everything of a run that was stopped as its backlog grew."""
    late = run(slo_quantiles={"ttft_s": quantiles(None, 0.02)})
    stopped = run(backlog={"grows": True, "stopped_early": True})
    nobody = run(slo_quantiles={"ttft_s": quantiles(None, 1.0)})
    assert [parse_slo("ttft_p99=9s").ratio(each) for each in (late, stopped, nobody)] == [WORST] * 3


def test_a_mean_bears_one_unanswered_request_in_a_hundred():
    """It is that of the others; with more it is infinite, as the mean really is."""
    slo = parse_slo("ttft_mean=1s")
    for lost, ratio in ((0.009, 0.2), (0.011, WORST)):
        assert slo.ratio(run(slo_quantiles={"ttft_s": quantiles(0.5, lost)})) == pytest.approx(ratio)


def test_those_who_cancelled_break_no_slo():
    """A tenth left of its own accord: unanswered, and no latency is infinite for it."""
    left = run(unanswered_share=0.1)
    assert [parse_slo(f"ttft_{each}=1s").ratio(left) for each in ("p99", "mean")] == [0.5, pytest.approx(0.2)]


def test_what_does_not_exist_breaks_no_slo():
    """Answers of one token have no TPOT."""
    assert parse_slo("tpot_p99=1ms").ratio(run()) < 0.01


@given(st.floats(1e-3, 50), st.floats(0.1, 10), st.floats(1.01, 5))
def test_a_stricter_limit_is_used_more(value, limit, factor):
    """Dividing a limit by a factor multiplies its used share by it."""
    found = run(slo_quantiles={"ttft_s": quantiles(value)})
    loose, strict = (parse_slo(f"ttft_p99={each!r}").ratio(found) for each in (limit * factor, limit))
    assert strict == pytest.approx(factor * loose) and strict == pytest.approx(value / limit)
