"""Two runs with tenants compared: goodput by each tenant's own limits, and Jain's index beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.compare.document import compare_runs
from simserve.compare.measures import drawn_rates
from simserve.compare.pairing import pair_variants
from simserve.compare.read import Run, load_run
from simserve.compare.requests import read_requests
from simserve.compare.resample import draw_blocks
from simserve.manifest import build_manifest
from simserve.report.compare_words import ratio_rows
from simserve.request import Tenant
from simserve.run_directory import OutputChoices, write_files
from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from tests.compare_builders import SCENARIO, requests_frame, write_run
from tests.test_fairness import SHARED


def run_folder(folder: Path, slots: int) -> Run:
    engine: dict[str, Any] = {**SHARED["engine"], "max_num_seqs": slots}
    result = simulate(parse_scenario({**SHARED, "engine": engine}))
    folder.mkdir()
    manifest = build_manifest(result, "simserve run", datetime(2026, 1, 1, tzinfo=UTC), 1.0)
    write_files(result, manifest, folder, OutputChoices(report=False))
    return load_run(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    home = tmp_path_factory.mktemp("tenants")
    return run_folder(home / "four", 4), run_folder(home / "eight", 8)


def test_the_run_itself_is_resample_zero(runs: tuple[Run, Run]) -> None:
    """Goodput as the comparison counts it from requests.parquet and the manifest's limits is summary.json's, by each
    tenant's own limits: chat's TTFT, the scenario's E2E for everybody."""
    run = runs[0]
    for variant, summary in run.summary["variants"].items():
        requests = read_requests(run, variant)
        assert requests.tenants is not None
        assert set(requests.tenants.each) == {Tenant("chat", ttft_s=0.05), Tenant("batch")}
        drawn = drawn_rates(requests, {"e2e_s": 10.0}, draw_blocks(300, 8, 0))
        assert drawn["goodput_rps"][0] == pytest.approx(summary["goodput_rps"])
        without = drawn_rates(requests, {}, draw_blocks(300, 8, 0))
        assert without["goodput_rps"][0] >= drawn["goodput_rps"][0]


def test_fairness_stands_in_the_comparison(runs: tuple[Run, Run]) -> None:
    """Both indices as in the summaries, their ratio, and no interval, for resamples have no tenants of their own."""
    pairing = pair_variants(*runs)
    pair = next(each for each in compare_runs(*runs, pairing)["pairs"] if each["variant_a"] == "fcfs")
    metric = pair["metrics"]["fairness.speed"]
    a, b = (run.summary["variants"]["fcfs"]["fairness"]["speed"] for run in runs)
    assert (metric["a"], metric["b"], metric["ratio"]) == (a, b, pytest.approx(b / a))
    assert metric["low"] is None and metric["verdict"] is None
    rows = ratio_rows(pair)
    assert rows["fairness.speed"][0] == "Jain: tokens per second of E2E"
    assert "%" not in rows["fairness.served_share"][1]


def test_runs_without_tenants_say_nothing_of_fairness(tmp_path: Path) -> None:
    """No column, no tenants, no rows."""
    frame = requests_frame(np.ones(30))
    runs = [load_run(write_run(tmp_path / name, {"x": frame})) for name in ("a", "b")]
    assert read_requests(runs[0], "x").tenants is None
    pair = compare_runs(*runs, pair_variants(*runs))["pairs"][0]
    assert not any(name.startswith("fairness.") for name in ratio_rows(pair))


def test_limits_of_tenants_alone_make_goodput_comparable(tmp_path: Path) -> None:
    """The scenario asks nothing; one tenant was promised 1.5 s. Of four requests, in 1 and 2 s by turns, that tenant's
    first two keep it by half, and the others, to whom nothing was promised, all do. Who has no name has no limits."""
    frame = requests_frame(np.array([1.0, 2.0, 1.0, 2.0])).assign(tenant=["a", "a", None, "b"])
    workload = {"tenants": {"a": {"slo": {"ttft_s": 1.5, "tpot_s": None, "e2e_s": None}}, "b": {}}}
    scenario = {**SCENARIO, "slo": {}, "workload": workload}
    run = load_run(write_run(tmp_path / "a", {"x": frame}, scenario))
    requests = read_requests(run, "x")
    makespan = float(frame.end_s.max() - frame.arrival_s.min())
    drawn = drawn_rates(requests, {}, draw_blocks(4, 1, 0))
    assert drawn["goodput_rps"][0] == pytest.approx(3 / makespan)
    pair = compare_runs(run, run, pair_variants(run, run))["pairs"][0]
    assert "goodput_rps" in pair["metrics"]
