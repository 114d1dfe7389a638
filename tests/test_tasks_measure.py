"""What is measured of a run: against hand-made records, the engine's own summary, and queueing theory."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.engine import EngineOptions
from simserve.errors import ScenarioError
from simserve.metrics import summarize
from simserve.records import CANCELLED, FINISHED, NEVER, TIMED_OUT
from simserve.scenario import parse_scenario
from simserve.simulate import prepare, run_variant
from simserve.tasks.backlogged import MIN_COMPLETIONS, backlogged_rps
from simserve.tasks.measure import measure
from simserve.tasks.metric_names import LATENCY_METRICS, check_metric, dotted, metric_value
from simserve.tasks.quantiles import quantiles_with_unanswered
from simserve.tasks.task import run_task
from simserve.tasks.warmup import WarmupRule
from tests.record_builders import Served, Slo, add_span, records_of
from tests.sweep_builders import queue, service_s, task

WHOLE, STEADY = WarmupRule(0.0, False), WarmupRule(0.5, True)
CONTRACT = {
    "num_requests",
    "num_finished",
    "num_rejected",
    "num_cancelled",
    "num_timed_out",
    "num_turned_away",
    "offered_rps",
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "goodput_rps",
    "slo_attainment",
    "mean_batch_size",
    "mean_running",
    "mean_waiting",
    "busy_share",
    "num_preemptions",
    "kv_used",
    "extrapolated_step_share",
    "mean_prompt_tokens",
    "mean_output_tokens",
    "num_warmup_cut",
    "backlogged_rps",
    "unanswered_share",
    "ttft_s.p99",
    "tpot_s.mean",
    "e2e_s.p50",
    "queue_time_s.p95",
    "itl_s.p90",
    "slo_quantiles.ttft_s.p99",
}


def _served(n, service=0.5, gap=1.0, outputs=2):
    """n requests, one every ``gap`` seconds, first token after half of ``service``."""
    rows = [Served(i * gap, i * gap, i * gap + service / 2, i * gap + service, outputs) for i in range(n)]
    records = records_of(*rows)
    records.num_arrived = n
    add_span(records, 0, n * gap, num_steps=n, num_seqs=1)
    return records


def test_a_whole_run_is_measured_to_its_last_completion():
    """Ten requests a second apart, half a second each: 10 in 9.5 s, all answered."""
    found = measure(_served(10), Slo(ttft_s=0.3), WHOLE)
    assert (found["num_requests"], found["num_finished"], found["num_warmup_cut"]) == (10, 10, 0)
    assert found["requests_per_s"] == pytest.approx(10 / 9.5)
    assert found["output_tokens_per_s"] == pytest.approx(20 / 9.5)
    assert found["total_tokens_per_s"] == pytest.approx(120 / 9.5)
    assert found["offered_rps"] == pytest.approx(1.0)
    assert found["ttft_s"]["p99"] == pytest.approx(0.25)
    assert found["slo_attainment"] == 1.0
    assert found["goodput_rps"] == pytest.approx(10 / 9.5)


def test_a_steady_state_is_measured_to_the_last_arrival():
    """The first half is cut: 5 requests remain; in the 4 s from the first of their arrivals to the last, 4 finish (the
    last one is still served)."""
    found = measure(_served(10), None, STEADY)
    assert (found["num_requests"], found["num_warmup_cut"]) == (5, 5)
    assert found["requests_per_s"] == pytest.approx(1.0)
    assert found["offered_rps"] == pytest.approx(1.0)


def test_measures_agree_with_the_summary_of_a_whole_run():
    """Nothing cut: throughput, latencies, occupancy and attainment are those of summary.json, by other code paths."""
    scenario = parse_scenario({**queue(0.8, 200), "slo": {"ttft_s": 0.01}})
    prepared = prepare(scenario)
    records = run_variant(prepared, "continuous-paged", EngineOptions())
    found, summary = measure(records, scenario.slo, WHOLE), summarize(records, scenario.slo)
    for name in ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "goodput_rps", "slo_attainment"):
        assert found[name] == pytest.approx(summary[name]), name
    for name in ("mean_batch_size", "mean_running", "mean_waiting", "busy_share", "extrapolated_step_share"):
        assert found[name] == pytest.approx(summary[name]), name
    for name in ("ttft_s", "e2e_s", "queue_time_s", "itl_s"):
        assert found[name] == {key: summary[name][key] for key in ("mean", "p50", "p90", "p95", "p99")}, name
    assert found["kv_used"] == pytest.approx(summary["kv_cache"]["mean_used"])


def test_an_md1_queue_waits_as_theory_says():
    """INV: Pollaczek-Khinchine, mean wait ρ s / (2 (1 − ρ)), within 3 standard errors of 40 runs at ρ = 0.6; and the
    share of time that the server works is ρ."""
    runs = [run_task(task(queue(0.6, 2000), seed))["continuous-paged"] for seed in range(40)]
    waits = np.array([run["queue_time_s"]["mean"] for run in runs]) / service_s()
    assert waits.mean() == pytest.approx(0.6 / (2 * 0.4), abs=3 * waits.std(ddof=1) / math.sqrt(40))
    busy = np.array([run["busy_share"] for run in runs])
    assert busy.mean() == pytest.approx(0.6, abs=3 * busy.std(ddof=1) / math.sqrt(40))


def test_a_backlogged_server_works_at_its_capacity():
    """ρ = 3: the rate while somebody waits is 1 / service time, to the nanosecond; below capacity nobody waits long
    enough to tell."""
    fast = run_task(task(queue(3.0, 400), stop_early=False))["continuous-paged"]
    assert fast["backlogged_rps"] == pytest.approx(1 / service_s(), rel=1e-6)
    assert run_task(task(queue(0.2, 400)))["continuous-paged"]["backlogged_rps"] is None


def test_backlogged_counts_from_completion_to_completion_within_the_longest_stretch():
    """Someone waits from 2 to 52 s and from 60 to 64 s; one completion a second: 50 counted after the first at 2 s. A
    stretch with too few gives nothing."""
    records = _served(70, service=1.0)
    records.spans.rows = type(records.spans.rows)(len(records.spans.COLUMNS))
    for begin, end, waiting in ((0, 2, 0), (2, 30, 1), (30, 52, 3), (52, 60, 0), (60, 64, 2)):
        add_span(records, begin, end, num_steps=1, num_waiting_begin=waiting)
    assert backlogged_rps(records) == pytest.approx(1.0)
    few = _served(MIN_COMPLETIONS, service=1.0)
    few.spans.rows = type(few.spans.rows)(len(few.spans.COLUMNS))
    add_span(few, 0, 100, num_steps=1, num_waiting_begin=1)
    assert backlogged_rps(few) is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e3), max_size=40), st.integers(0, 10))
def test_an_unanswered_request_is_an_infinite_wait(answered, num_unanswered):
    """Against numpy on the values with infinities put in (where its interpolation is defined)."""
    found = quantiles_with_unanswered(np.array(answered), num_unanswered)
    everything = np.sort(np.array([*answered, *[math.inf] * num_unanswered]))
    for q in (50, 90, 95, 99):
        if not len(everything):
            assert found[f"p{q}"] is None
            continue
        rank = q / 100 * (len(everything) - 1)
        low, high = everything[math.floor(rank + 1e-9)], everything[math.ceil(rank - 1e-9)]
        if math.isinf(high):
            assert found[f"p{q}"] is None
        else:
            assert found[f"p{q}"] == pytest.approx(low + (rank - math.floor(rank + 1e-9)) * (high - low), abs=1e-6)
    assert (found["mean"] is None) == (num_unanswered > 0 or not answered)


def test_those_who_were_turned_away_count_against_the_slo():
    """Two of ten rejected: attainment 0.8, p99 for an SLO is infinite (null), while p50 stays finite."""
    rows = [Served(i, i, i + 0.2, i + 0.4, 2) for i in range(8)]
    records = records_of(*rows, num_rejected=2)
    records.num_arrived = 10
    add_span(records, 0, 10, num_steps=8, num_seqs=1)
    found = measure(records, Slo(ttft_s=1.0), WHOLE)
    assert found["num_rejected"] == 2
    assert found["slo_attainment"] == pytest.approx(0.8)
    assert found["unanswered_share"] == pytest.approx(0.2)
    assert found["slo_quantiles"]["ttft_s"]["p99"] is None
    assert found["slo_quantiles"]["ttft_s"]["p50"] == pytest.approx(0.2)
    assert found["ttft_s"]["p99"] == pytest.approx(0.2)


def _leave(records, status, rows, first_token=True):
    """These requests end with a status, with or without having had their first token."""
    requests = records.requests
    requests.status[rows] = status
    if not first_token:
        requests.first_token_ns[rows] = requests.first_scheduled_ns[rows] = NEVER


@pytest.mark.parametrize("status", [CANCELLED, TIMED_OUT])
def test_who_leaves_after_the_first_token_has_a_ttft(status):
    """Two of ten leave in the middle of their answers: everybody's TTFT is 0.25 s, his queue time 0; only those who did
    not leave of their own accord have an E2E that never ends."""
    records = _served(10)
    _leave(records, status, slice(8, 10))
    found = measure(records, None, WHOLE)["slo_quantiles"]
    assert found["ttft_s"]["p99"] == pytest.approx(0.25) and found["queue_time_s"]["p99"] == 0.0
    assert (found["ttft_s"]["lost_share"], found["ttft_s"]["answered_mean"]) == (0.0, pytest.approx(0.25))
    late = (None, 0.2) if status == TIMED_OUT else (pytest.approx(0.5), 0.0)
    assert (found["e2e_s"]["p99"], found["e2e_s"]["lost_share"]) == late


@pytest.mark.parametrize(("status", "p99", "lost"), [(CANCELLED, 0.25, 0.0), (TIMED_OUT, None, 0.2)])
def test_who_leaves_before_the_first_token_is_lost_unless_he_cancelled(status, p99, lost):
    """Waiting in vain until a time-out is infinitely late; closing the window is a choice, and counts nowhere."""
    records = _served(10)
    _leave(records, status, slice(8, 10), first_token=False)
    found = measure(records, None, WHOLE)["slo_quantiles"]
    for name in ("ttft_s", "queue_time_s"):
        assert found[name]["lost_share"] == lost
    assert found["ttft_s"]["p99"] == (None if p99 is None else pytest.approx(p99))


def test_a_run_that_was_ended_counts_what_had_happened():
    """Stopped after the 6th of 10 arrivals: who had not arrived counts nowhere, the unfinished are unanswered."""
    records = _served(10)
    records.requests.status[5:] = 0
    records.requests.end_ns[5:] = records.requests.first_scheduled_ns[6:] = -1
    records.num_arrived, records.stopped_ns = 6, 5_200_000_000
    found = measure(records, None, WHOLE)
    assert (found["num_requests"], found["num_finished"]) == (6, 5)
    assert found["requests_per_s"] == pytest.approx(5 / 5.2)
    assert found["unanswered_share"] == pytest.approx(1 / 6)
    assert found["backlog"]["stopped_early"]


def test_requests_that_come_at_once_offer_no_rate():
    """All at time 0: offered is null, and rates run to the last completion even where a steady state was asked for."""
    records = _served(10, gap=0.0)
    found = measure(records, None, WarmupRule(None, True))
    assert found["offered_rps"] is None
    assert found["requests_per_s"] == pytest.approx(10 / 0.5)
    assert not found["backlog"]["grows"]


def test_variants_of_a_task_meet_the_same_requests_and_so_do_settings():
    """Common random numbers: what arrives (mean lengths, rate) is equal for two policies, and for two batch limits."""
    base = queue(
        0.5, 60, prompt_tokens={"uniform": {"low": 10, "high": 900}}, output_tokens={"uniform": {"low": 1, "high": 30}}
    )
    base["variants"] = {"continuous": {}, "static": {"engine": {"policy": "static", "max_wait_s": 0.01}}}
    wide = {**base, "engine": {**base["engine"], "max_num_seqs": 16}}
    met = []
    for data in (base, wide):
        for measures in run_task(task(data, seed=3)).values():
            assert measures["num_finished"] == 60
            met.append([measures[name] for name in ("offered_rps", "mean_prompt_tokens", "mean_output_tokens")])
    assert met == [met[0]] * 4
    other = run_task(task(base, seed=4))["static"]
    assert other["mean_prompt_tokens"] != met[0][1]


def test_a_draw_of_the_step_times_changes_times_and_not_requests():
    """calibration_draw: other latencies on the same requests; the same draw again gives the same measures; a roofline
    has no draws."""
    data = {**queue(0.5, 40), "step_time": {"profile": "25m-cpu-fp32"}, "model": "25m"}
    data["workload"] = {**data["workload"], "arrivals": {"process": "poisson", "rate_rps": 1.0}}
    plain, drawn, again, other = (
        run_task(task(data, calibration_draw=draw))["continuous-paged"] for draw in (None, 0, 0, 1)
    )
    assert drawn == again
    assert plain["e2e_s"] != drawn["e2e_s"] != other["e2e_s"]
    assert plain["offered_rps"] == drawn["offered_rps"]
    roof = [run_task(task(queue(0.5), calibration_draw=draw)) for draw in (None, 0)]
    assert roof[0] == roof[1]


def test_measures_are_json_and_hold_every_name_of_the_contract():
    """Strict JSON, unchanged by a round trip; every metric can be asked for by its dotted name."""
    for utilization in (0.5, 3.0):
        measures = run_task(task(queue(utilization, 600)))["continuous-paged"]
        assert json.loads(json.dumps(measures, allow_nan=False)) == measures
        names = dict(dotted(measures))
        assert set(names) >= CONTRACT
        assert not any(name.startswith("backlog.") for name in names)
        for name in LATENCY_METRICS:
            assert metric_value(measures, name) == names[name]


def test_a_metric_must_be_a_latency():
    """A knee is taken on a latency; a misspelt one is met with the nearest."""
    check_metric("ttft_s.p99", "x")
    with pytest.raises(ScenarioError, match=r"did you mean 'ttft_s\.p99'"):
        check_metric("ttft.p99", "x")
    with pytest.raises(ScenarioError, match="must be a latency"):
        check_metric("requests_per_s", "x")


def test_finished_is_what_the_engine_calls_finished():
    """num_finished counts that status among those kept."""
    prepared = prepare(parse_scenario(queue(0.5, 600)))
    records = run_variant(prepared, "continuous-paged", EngineOptions())
    found = measure(records, None, WarmupRule(0.25, True))
    assert found["num_warmup_cut"] == 150
    assert found["num_finished"] == int((records.requests.status[150:] == FINISHED).sum())
