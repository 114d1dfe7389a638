"""``knee.json``: what is found of a study whose answers are known, and what a reader is told."""

import json
import math

import pytest
from rich.console import Console

from simserve.knee.batch import batch_knee_of
from simserve.knee.find import find_knees
from simserve.knee.points import curve_point, flat
from simserve.knee.saturation import StudyError
from simserve.knee.table import print_knees
from simserve.report import render_knee
from simserve.scenario import parse_scenario
from tests.scenario_builders import small
from tests.study_builders import FakeRunner, measures, study

MU = 20.0


def mm1(load, replication, task):
    """M/M/1 of 20 requests/s whose replications are a percent apart."""
    service = (1 + 0.01 * (replication - 1.5)) / MU
    if load is None or load * service >= 1:
        return measures(50.0, backlogged_rps=1 / service)
    grows = {"growth": 0.0, "sd": 0.02, "num_batches": 20, "p_value": 0.5, "grows": False, "stopped_early": False}
    return measures(service / (1 - load * service), backlog=grows)


def find(of=mm1, metric="e2e_s.mean", replications=4, **changes):
    found = study(replications, **changes)
    runner = FakeRunner(of)
    return find_knees(found, runner, metric, replications, 12), runner


def test_the_knee_of_mm1_is_found_from_end_to_end():
    """Saturation at 20; the knee of 1/(1−ρ) over 5 % to 95 % of it at 1 − ρ = sqrt(0.95 · 0.05)."""
    document, _ = find()
    (row,) = document["variants"].values()
    assert row["saturation"]["value"] == pytest.approx(MU, rel=1e-3)
    assert row["knee"]["range"] == pytest.approx([0.05 * MU, 0.95 * MU], rel=1e-3)
    assert row["knee"]["value"] == pytest.approx(MU * (1 - math.sqrt(0.95 * 0.05)), rel=0.01)
    assert row["knee"]["low"] < row["knee"]["value"] < row["knee"]["high"]


def test_the_document_has_what_the_page_draws():
    """Keys and shapes; the whole is strict JSON."""
    document, _ = find()
    assert document["kind"] == "simserve knee" and document["schema_version"] == 1
    assert document["load"]["key"] == "workload.arrivals.rate_rps" and document["metric"] == "e2e_s.mean"
    (row,) = document["variants"].values()
    assert set(row) == {"saturation", "knee", "batch_knee", "curve", "step_time"}
    loads = [point["load"] for point in row["curve"]]
    assert loads == sorted(loads) and len(loads) == 12
    assert all({"load", "metrics", "grows", "growth_p"} == set(point) for point in row["curve"])
    assert set(row["curve"][0]["metrics"]["ttft_s.p99"]) >= {"value", "low", "high", "n"}
    assert row["batch_knee"] is None  # nobody measured a roofline
    assert row["step_time"]["calibrated"] is False
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_the_same_study_is_the_same_document():
    """To the byte; more replications narrow the knee's interval."""
    first, second = find()[0], find()[0]
    assert json.dumps(first) == json.dumps(second)


def test_every_variant_meets_the_same_requests():
    """Common random numbers: the seeds of one variant are those of the other."""
    seeds = {"a": set(), "b": set()}

    def of(load, replication, task):
        seeds[task.variants[0]].add(task.seed)
        return mm1(load, replication, task)

    found = study(3, variants={"a": {}, "b": {"engine": {"max_num_seqs": 2}}})
    find_knees(found, FakeRunner(of), "e2e_s.mean", 3, 6)
    assert seeds["a"] == seeds["b"] == {0, 1, 2}


def test_any_latency_can_be_the_metric():
    """The command refuses all else."""
    assert find(metric="ttft_s.p99")[0]["metric"] == "ttft_s.p99"


def test_tests_that_do_not_bear_the_estimate_out_are_said():
    """The fake queue never grows in any test: one note for all variants."""
    document, _ = find()
    assert sum("not seen to grow at 1.05 times" in note for note in document["notes"]) == 1
    assert any("5% to 95% of the saturation load" in note for note in document["notes"])


def test_a_variant_that_cannot_saturate_leaves_the_others_their_knees(tmp_path):
    """Too few requests for its slots: null, with the reason in a note, and the page and the table are made all the
    same. Where no variant has an answer, it is an error."""

    def of(load, replication, task):
        return measures(1.0) if task.variants == ("bad",) else mm1(load, replication, task)

    document, _ = find(of, variants={"bad": {}, "good": {"engine": {"max_num_seqs": 2}}})
    bad, good = document["variants"]["bad"], document["variants"]["good"]
    assert bad["saturation"]["value"] is None and bad["knee"]["value"] is None and "requests" in bad["reason"]
    assert good["saturation"]["value"] == pytest.approx(MU, rel=1e-3)
    assert any("no saturation rate: bad" in note for note in document["notes"])
    console = Console(record=True, width=200)
    print_knees(document, console)
    assert "good" in console.export_text()
    render_knee(document, {"command": "", "simserve_version": "1"}, tmp_path / "knee.html")
    assert "good" in (tmp_path / "knee.html").read_text()
    with pytest.raises(StudyError, match="must have enough requests"):
        find(lambda *_: measures(1.0))


def test_a_closed_loop_has_its_knee_where_the_slots_are_full():
    """8 slots: throughput rises to 8 clients and latency is flat, then proportional. The knee is near the corner."""

    def of(load, replication, task):
        return measures(max(1.0, load / 8), requests_per_s=min(load, 8.0))

    document, _ = find(of, workload__arrivals=..., workload__concurrency=4, workload__num_requests=4000)
    (row,) = document["variants"].values()
    assert row["saturation"]["plateau_rps"]["value"] == pytest.approx(8.0)
    assert row["knee"]["value"] == pytest.approx(8, abs=0.7)
    assert row["saturation"]["checks"] == [] and row["knee"]["range"][0] == 1.0


def test_the_batch_knee_is_that_of_the_profile_s_page():
    """25m on a CPU: as its profile says, inside its own interval, its shares of the draws adding up to one."""
    data = {**small(), "step_time": {"profile": "25m-cpu-fp32"}, "model": "25m"}
    scenario = parse_scenario(data)
    from simserve.step_time.profile_schema import load_profile

    knee = batch_knee_of(scenario)
    assert knee["value"] == load_profile("25m-cpu-fp32").batch_curve.knee
    assert knee["low"] <= knee["value"] <= knee["high"]
    assert sum(knee["shares"].values()) == pytest.approx(1.0) and str(knee["value"]) in knee["shares"]


def test_measures_go_by_dotted_names():
    """Numbers only; what judges a run is left out."""
    names = flat(measures(1.0))
    assert names["e2e_s.p95"] == 1.0 and names["num_finished"] == 1000
    assert not any(name.startswith(("backlog.", "slo_quantiles")) for name in names)


def test_a_point_pools_its_replications():
    """Mean and t-interval of each measure; one growth test of all batches."""
    grows = {"growth": 0.1, "sd": 0.05, "num_batches": 20, "p_value": 0.0, "grows": True, "stopped_early": False}
    point = curve_point(3.0, [measures(1.0, backlog=grows), measures(2.0, backlog=grows)])
    assert point["metrics"]["e2e_s.mean"]["value"] == 1.5 and point["metrics"]["e2e_s.mean"]["n"] == 2
    assert point["grows"] is True and point["growth_p"] < 1e-6 and point["load"] == 3.0
