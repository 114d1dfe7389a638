"""The saturation rate: from departures under a backlog, re-run where that is not the whole story, and tested."""

from pathlib import Path

import pytest

from simserve.knee.find import saturation_of
from simserve.knee.plateau import closed_loop_saturation
from simserve.knee.probe import Probe
from simserve.knee.saturation import StudyError, open_loop_saturation
from simserve.knee.study import Ask
from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from simserve.tasks.intervals import t_quantile
from tests.study_builders import FakeRunner, md1, measures, real_runner, service_s, study


def probe_of(of, **changes):
    found = study(**changes)
    (variant,) = found.variants
    return Probe(found, variant, FakeRunner(of))


def fair(load, replication, task):
    """A server of 10, 11, 12, … requests/s by replication."""
    return measures(1.0, backlogged_rps=10.0 + replication)


def test_the_departures_of_each_replication_give_a_t_interval():
    """10, 11, 12, 13: mean 11.5, ± t · s / 2. Nobody is preferred and nobody leaves, so that one run each is enough."""
    probe = probe_of(fair)
    found = open_loop_saturation(probe, 4).interval
    half_width = t_quantile(3) * (5 / 3) ** 0.5 / 2
    assert (found["value"], found["n"]) == (11.5, 4)
    assert (found["low"], found["high"]) == (pytest.approx(11.5 - half_width), pytest.approx(11.5 + half_width))
    assert [load for load, _ in probe.runner.asked[:4]] == [None] * 4
    assert len(probe.runner.asked) == 4 + 8  # and the two checks


def test_one_replication_has_no_interval():
    """Its chance is unknown."""
    found = open_loop_saturation(probe_of(fair), 1).interval
    assert (found["value"], found["low"], found["high"]) == (10.0, None, None)


def test_the_estimate_is_tested_below_and_above():
    """At 0.95 and 1.05 times: what the growth test says there is reported, whether it agrees or not."""

    def of(load, replication, task):
        grows = load is not None and load > 10
        backlog = {"growth": 0.05 if grows else 0.0, "sd": 0.02, "num_batches": 20, "p_value": 0.5, "grows": grows}
        return measures(1.0, backlogged_rps=10.0, backlog=backlog)

    low, high = open_loop_saturation(probe_of(of), 4).checks
    assert (low["at"], low["load"], low["grows"]) == (0.95, pytest.approx(9.5), False)
    assert (high["at"], high["load"], high["grows"]) == (1.05, pytest.approx(10.5), True)
    assert high["p_value"] < 1e-6 < low["p_value"]


def test_an_order_that_prefers_somebody_is_measured_near_saturation():
    """Everybody at once makes 20/s of like lengths; near saturation only 10/s can be had: the re-runs find it."""
    probe = probe_of(
        lambda load, replication, task: measures(1.0, backlogged_rps=20.0 if load is None else 10.0),
        engine__queue_order="shortest_job_oracle",
    )
    assert open_loop_saturation(probe, 2).load == pytest.approx(10.0)


def test_departures_of_an_overload_that_starves_somebody_raise_no_estimate():
    """Fed 5 % too much, shortest-job-first departs 4 % more than it can sustain; that must not run away."""
    probe = probe_of(
        lambda load, replication, task: measures(1.0, backlogged_rps=10.0 if load is None else 0.99 * load),
        engine__queue_order="shortest_job_oracle",
    )
    assert open_loop_saturation(probe, 2).load == pytest.approx(10.0)


def test_a_queue_limit_turns_everybody_away_at_first():
    """No backlog at once, and a first guess that is no overload: the rate is raised until there is one."""

    def of(load, replication, task):
        overloaded = load is not None and load > 10
        return measures(1.0, requests_per_s=6.0, backlogged_rps=10.0 if overloaded else None)

    assert open_loop_saturation(probe_of(of), 2).load == pytest.approx(10.0)


def test_too_few_requests_to_keep_anybody_waiting():
    """One sentence: how many requests, how many slots, what to do."""
    with pytest.raises(StudyError) as caught:
        open_loop_saturation(probe_of(lambda *_: measures(1.0)), 2)
    message = str(caught.value)
    assert message.startswith("small.yaml: workload: ") and "4 requests for 4 slots" in message
    assert "give more requests" in message


def test_a_probe_runs_each_run_once():
    """What was asked before is not simulated again; a run that may end early is another run."""
    probe = probe_of(fair)
    asks = [Ask(1.0, 0), Ask(1.0, 1), Ask(1.0, 0)]
    first = probe.run(asks, "")
    assert probe.run(asks, "") == first and first[0] == first[2] != first[1]
    assert len(probe.runner.asked) == 2
    probe.run(asks, "", stop_early=True)
    assert len(probe.runner.asked) == probe.num_simulations == 4


def test_md1_saturates_at_one_over_its_service_time(tmp_path):
    """One slot, constant service D: 1 / D within the interval, which is nearly a point; the tests bear it out."""
    found = md1(1500, seed=3)
    with real_runner(tmp_path) as runner:
        (variant,) = found.variants
        saturation = open_loop_saturation(Probe(found, variant, runner), 4)
    truth = 1 / service_s(found)
    interval = saturation.interval
    assert interval["value"] == pytest.approx(truth, rel=1e-6)
    assert interval["low"] - 1e-6 * truth <= truth <= interval["high"] + 1e-6 * truth
    assert not saturation.checks[0]["grows"]


def test_static_groups_of_constant_lengths_saturate_at_slots_over_group_time(tmp_path):
    """Every group of four takes the same time T: 4 / T."""
    common = {"workload__output_tokens": {"fixed": 12}, "engine__policy": "static"}
    found = study(workload__num_requests=400, **common)
    group = {**found.axis.everybody_at_once(found.data)}
    group["workload"] = {**group["workload"], "num_requests": 4}
    (variant,) = simulate(parse_scenario(group)).variants.values()
    with real_runner(tmp_path) as runner:
        (name,) = found.variants
        saturation = open_loop_saturation(Probe(found, name, runner), 4)
    assert saturation.load == pytest.approx(4 / variant.summary["makespan_s"], rel=1e-6)


def bounded(load, replication, task):
    """Answers 9, 10 or 11 requests/s at most, by replication; whoever is too many is turned away and nobody waits long
    enough to call it a backlog. Much too many waste a tenth of the work."""
    most = 9.0 + replication
    return measures(1.0, requests_per_s=5.0 if load is None else min(load, most) * (0.9 if load > 3 * most else 1.0))


@pytest.mark.parametrize("changes", [{"engine__max_queued_requests": 2}, {"workload__clients": {"timeout_s": 9.0}}])
def test_a_bounded_line_saturates_at_its_plateau(changes):
    """A queue limit, or clients who give up: the largest throughput of any load, with a t-interval, no growth tests,
    and in words why."""
    saturation, note = saturation_of(probe_of(bounded, **changes), 3)
    half_width = t_quantile(2) / 3**0.5
    assert saturation.load == pytest.approx(10.0) and saturation.checks == ()
    assert saturation.interval["low"] == pytest.approx(10 - half_width)
    assert "waiting line is bounded" in note and "does not raise" in note


def test_a_bounded_line_that_answers_nobody_is_a_sentence():
    """There is no rate to begin with."""
    probe = probe_of(lambda *_: measures(None, requests_per_s=0.0), engine__max_queued_requests=2)
    with pytest.raises(StudyError, match="nobody is answered"):
        saturation_of(probe, 2)


def clients_of(of, num_requests=4000):
    return probe_of(of, workload__arrivals=..., workload__concurrency=4, workload__num_requests=num_requests)


def closed(load, replication, task):
    """Each client brings 2 requests/s until 16 of them saturate; replications differ by a percent."""
    return measures(1.0, requests_per_s=(1 + 0.01 * replication) * min(2.0 * load, 32.0))


def test_a_closed_loop_has_a_plateau():
    """Clients double until two doublings gain nothing; 95 % of the plateau is reached at 15.2 clients (between 8, which
    make 16/s, and 16, which make 32/s: by interpolation on a log scale 8 · 2^0.9)."""
    saturation, note = closed_loop_saturation(clients_of(closed), 4)
    assert note is None and saturation.checks == ()
    assert saturation.plateau_rps["value"] == pytest.approx(32 * 1.015)
    assert saturation.load == pytest.approx(8 * 2**0.9, rel=1e-6)


def test_clients_stop_doubling_at_a_quarter_of_the_requests_and_it_is_said():
    """A run of 40 requests tells nothing about 32 clients."""
    probe = clients_of(closed, num_requests=40)
    _, note = closed_loop_saturation(probe, 2)
    assert max(load for load, _ in probe.runner.asked) == 8  # the next doubling is beyond a quarter
    assert note is not None and "still rose at 8 clients" in note


def test_a_closed_loop_of_one_slot_saturates_with_two_clients(tmp_path):
    """No think time: one client keeps one slot busy all the time, so the plateau is 1 / D from the first client on."""
    base = md1(400)
    workload = {key: value for key, value in base.data["workload"].items() if key != "arrivals"}
    found = study(workload={**workload, "concurrency": 4}, engine__max_num_seqs=1)
    with real_runner(Path(tmp_path)) as runner:
        (variant,) = found.variants
        saturation, _ = closed_loop_saturation(Probe(found, variant, runner), 2)
    assert saturation.plateau_rps["value"] == pytest.approx(1 / service_s(base), rel=0.01)
    assert saturation.load == 1.0
