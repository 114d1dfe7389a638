"""sweep.json as a pure function of results: intervals, verdicts, curves, front, commands; and its table."""

import copy
import itertools
import json

import pandas as pd
import pytest

from simserve.report.sweep_data import SweepData
from simserve.scenario import load_scenario
from simserve.scenario.load import apply_overrides
from simserve.summary import to_json
from simserve.sweep.document import sweep_document
from simserve.sweep.files import points_frame
from simserve.sweep.options import SweepOptions
from simserve.sweep.plan import build_plan
from simserve.sweep.reproduce import run_command
from simserve.sweep.run_reports import MAX_REPORTS, chosen_settings
from simserve.sweep.table import print_sweep
from simserve.sweep.whole_runs import with_whole_runs
from simserve.tasks.processes import InProcess
from simserve.tasks.runner import Runner
from simserve.tasks.store import PointStore
from simserve.tasks.task import run_task
from tests.scenario_builders import write
from tests.sweep_builders import queue, service_s

RATE = "workload.arrivals.rate_rps"
VARIANTS = {"one": {}, "two": {"engine": {"max_num_seqs": 2}}}


def _plan(folder, *over, data=None, overrides=(), **options):
    path = write(folder, data or {**queue(0.5, 600), "variants": VARIANTS}, "queue.yaml")
    return build_plan(SweepOptions(path, over=over, overrides=overrides, **options))


def _rates(*utilizations):
    return ",".join(repr(utilization / service_s()) for utilization in utilizations)


def _document(plan):
    measured = [run_task(each) for each in plan.measured()]
    drawn = [run_task(each) for each in plan.drawn()]
    return sweep_document(plan, measured, drawn, [f"command {i}" for i in range(len(plan.settings))])


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A queue at four loads, one beyond capacity, two variants, three replications: the plan and its document."""
    plan = _plan(tmp_path_factory.mktemp("swept"), f"{RATE}={_rates(0.3, 0.6, 0.8, 2.5)}", replications=3)
    return plan, _document(plan)


def test_points_are_settings_then_variants_and_each_has_its_command(swept):
    """Eight points; the settings turn slower than the variants."""
    plan, document = swept
    assert [(point["settings"], point["variant"]) for point in document["points"]] == [
        (settings, name) for settings in plan.settings for name in VARIANTS
    ]
    assert [point["command"] for point in document["points"]] == [f"command {i // 2}" for i in range(8)]
    assert document["load_axis"] == RATE
    assert document["seeds"] == [0, 1, 2]
    assert document["axes"] == [{"key": RATE, "values": [each[RATE] for each in plan.settings], "scale": "list"}]


def test_intervals_are_over_replications_and_latency_grows_with_load(swept):
    """n = 3; the mean wait of the queue rises along the curve, as it must."""
    _, document = swept
    waits = []
    for point in document["points"][::2]:
        wait = point["metrics"]["queue_time_s.mean"]
        assert wait["n"] == 3
        assert wait["low"] <= wait["value"] <= wait["high"]
        waits.append(wait["value"])
    assert waits == sorted(waits)


def test_the_point_beyond_capacity_grows_and_is_on_no_front(swept):
    """ρ = 2.5 for one server, 1.25 for two (a batch of two is faster than two batches, so the other variant may do):
    saturated from there, ended early three times, not on the front."""
    _, document = swept
    last = document["points"][6]
    assert (last["grows"], last["stopped_early"], last["pareto"]) == (True, 3, False)
    assert last["growth_p"] < 0.001
    assert not any(point["grows"] for point in document["points"][:6])
    curve = document["curves"][0]
    assert curve["variant"] == "one"
    assert curve["points"] == [0, 2, 4, 6]
    assert curve["saturated_from"] == last["settings"][RATE]


def test_the_front_holds_the_most_and_the_quickest(swept):
    """Among points whose backlog does not grow: the least latency and the greatest throughput are both on it."""
    _, document = swept
    stable = [point for point in document["points"] if not point["grows"]]

    def value(point, name):
        return point["metrics"][name]["value"]

    assert min(stable, key=lambda point: value(point, "e2e_s.mean"))["pareto"]
    assert any(
        value(point, "output_tokens_per_s") == max(value(each, "output_tokens_per_s") for each in stable)
        for point in stable
        if point["pareto"]
    )


def test_the_document_is_strict_json_and_a_pure_function(swept):
    """No NaN; the same results give the same bytes."""
    plan, document = swept
    again = _document(plan)
    assert to_json(again) == to_json(document)
    assert json.loads(to_json(document)) == document


IMPATIENT = {
    **queue(0.5, 200, clients={"timeout_s": 3 * service_s()}),
    "variants": {"one": {}},
}


def test_points_that_leave_requests_unanswered_are_named_and_on_no_front(tmp_path):
    """Clients who wait three service times: at ρ = 3 most go without. The mean latency of the rest is below 3 service
    times, the best of all saturated queues, and praises nothing."""
    document = _document(_plan(tmp_path, f"{RATE}={_rates(0.05, 0.1, 3, 6)}", data=IMPATIENT, replications=2))
    shares = [point["metrics"]["unanswered_share"]["value"] for point in document["points"]]
    assert shares[0] < 0.01 and min(shares[2:]) > 0.5
    assert [point["leaves_unanswered"] for point in document["points"]] == [share > 0.01 for share in shares]
    assert not any(point["pareto"] for point in document["points"][2:])
    assert document["points"][0]["pareto"]
    (note,) = [note for note in document["notes"] if "got no answer" in note]
    assert f"one at rate_rps {document['points'][3]['settings'][RATE]:.4g}: {shares[3]:.0%}" in note
    assert document["curves"][0]["saturation_reached"]
    assert (document["curves"][0]["knee"] or {"range": [0, 0]})["range"][1] < 1 / service_s()


def test_what_was_not_tested_is_told(tmp_path, capsys):
    """Thirty requests at ρ = 20 leave nearly all of them waiting, and nothing was tested: no p, a note, the table."""
    from rich.console import Console

    data = {**queue(0.5, 30), "variants": {"one": {}}}
    document = _document(_plan(tmp_path, f"{RATE}={_rates(5, 20)}", data=data, replications=2))
    assert [(p["grows"], p["growth_tested"], p["growth_p"]) for p in document["points"]] == [(False, False, None)] * 2
    assert any(
        note.startswith("whether the backlog of 2 of 2 points grows is not tested") for note in document["notes"]
    )
    for shown in (document, {**document, "curves": [], "load_axis": None}):
        print_sweep(shown, Console(width=150))
        rows = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("one")]
        assert all("not tested" in row for row in rows)


def test_a_knee_is_told_with_its_range_and_only_up_to_saturation(tmp_path):
    """Loads that end at ρ = 0.6 bend somewhere, wherever they end; those that pass saturation bend before it."""
    data, loads = {**queue(0.5, 1500), "variants": {"one": {}}}, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    short = _document(_plan(tmp_path, f"{RATE}={_rates(*loads)}", data=data, replications=2))
    whole = _document(_plan(tmp_path, f"{RATE}={_rates(*loads, 0.8, 0.9, 1.5)}", data=data, replications=2))
    assert (short["curves"][0]["knee"], short["curves"][0]["saturation_reached"]) == (None, False)
    assert any("do not reach saturation and get no knee" in note for note in short["notes"])
    knee = whole["curves"][0]["knee"]
    assert knee["range"] == pytest.approx([0.1 / service_s(), 0.9 / service_s()])
    assert any(note.startswith("knees: Kneedle on e2e_s.mean from the least load") for note in whole["notes"])


def test_a_closed_loop_is_saturated_on_its_plateau(tmp_path):
    """One server, one slot: a second client adds nothing, so 1 to 8 clients reach the plateau; with think time of a
    hundred services 1 to 4 clients do not."""
    reached = []
    for think in (None, {"fixed": 100 * service_s()}):
        data = {**queue(0.5, 200), "variants": {"one": {}}}
        del data["workload"]["arrivals"]
        data["workload"] |= {"concurrency": 1, **({"think_time_s": think} if think else {})}
        document = _document(_plan(tmp_path, "workload.concurrency=1,2,4", data=data, replications=1))
        reached.append(document["curves"][0]["saturation_reached"])
        assert not any(point["growth_tested"] for point in document["points"])
    assert reached == [True, False]


def test_no_part_of_a_run_stands_among_whole_ones(tmp_path):
    """Where one replication was ended early and the point does not grow, that one is simulated to its end before the
    mean is taken; where the point grows nothing is."""
    plan = _plan(
        tmp_path, f"{RATE}={_rates(0.8, 3)}", data={**queue(0.5, 600), "variants": {"one": {}}}, replications=3
    )
    measured = [run_task(each) for each in plan.measured()]
    assert [each["one"]["backlog"]["stopped_early"] for each in measured] == [False] * 3 + [True] * 3
    unlucky = copy.deepcopy(measured)
    unlucky[1]["one"]["backlog"]["stopped_early"] = True
    unlucky[1]["one"]["e2e_s"]["mean"] = 1e9
    with PointStore(tmp_path / "points.jsonl") as store, Runner(InProcess(), store) as runner:
        runs, draws = with_whole_runs(plan, runner, unlucky, [])
        assert runner.num_run == 1
    assert (runs, draws) == (measured, [])


def test_one_replication_has_no_intervals_and_needs_no_draws(tmp_path):
    """low = high = null, and nobody draws step times for an interval that there is not."""
    plan = _plan(tmp_path, f"{RATE}={_rates(0.5)}", replications=1)
    assert plan.drawn() == []
    point = _document(plan)["points"][0]
    assert (point["metrics"]["e2e_s.mean"]["low"], point["metrics"]["e2e_s.mean"]["n"]) == (None, 1)


def test_noise_of_a_calibration_is_drawn_for_measured_step_times_alone(tmp_path):
    """A profile doubles the tasks, on the same seeds, and widens the intervals; a roofline and a refusal do not."""
    assert _plan(tmp_path, "engine.max_num_seqs=1,2", data=queue(0.5), replications=3).drawn() == []
    data = {**queue(0.5), "step_time": {"profile": "25m-cpu-fp32"}, "model": "25m"}
    data["workload"] = {**data["workload"], "arrivals": {"process": "poisson", "rate_rps": 1.0}}
    off = _plan(tmp_path, "engine.max_num_seqs=1,2", data=data, replications=3, calibration_noise=False)
    on = _plan(tmp_path, "engine.max_num_seqs=1,2", data=data, replications=3)
    assert off.drawn() == []
    assert [(each.seed, each.calibration_draw) for each in on.drawn()] == [(0, 0), (1, 1), (2, 2)] * 2
    narrow, wide = _document(off), _document(on)
    for pair in zip(narrow["points"], wide["points"], strict=True):
        a, b = (point["metrics"]["e2e_s.mean"] for point in pair)
        assert a["value"] == b["value"]
        assert b["low"] < a["low"] < a["high"] < b["high"]
        assert a["calibration"] == 0 < b["calibration"] < 1
    assert any("bootstrap draws" in note for note in wide["notes"])
    assert any("is not in them" in note for note in narrow["notes"])


def test_a_second_axis_gives_a_curve_each(tmp_path):
    """Two block sizes: four curves of two points, in the order of the settings; without a load, no curve."""
    over = (f"{RATE}={_rates(0.6, 0.3)}", "engine.kv_cache.block_size=16,32")
    document = _document(_plan(tmp_path, *over, replications=1))
    assert [(each["variant"], each["settings"], each["points"]) for each in document["curves"]] == [
        ("one", {"engine.kv_cache.block_size": 16}, [4, 0]),
        ("two", {"engine.kv_cache.block_size": 16}, [5, 1]),
        ("one", {"engine.kv_cache.block_size": 32}, [6, 2]),
        ("two", {"engine.kv_cache.block_size": 32}, [7, 3]),
    ]
    flat = _document(_plan(tmp_path, over[1], replications=1))
    assert (flat["load_axis"], flat["curves"]) == (None, [])


def test_a_swept_policy_names_the_only_variant(tmp_path):
    """Without variants in the file a point is called by its policy and allocator, whichever it has."""
    document = _document(_plan(tmp_path, "engine.policy=continuous,chunked", data=queue(0.5), replications=1))
    assert [point["variant"] for point in document["points"]] == ["continuous-paged", "chunked-paged"]
    assert list(document["step_times"]) == ["continuous-paged", "chunked-paged"]


def test_swept_step_times_are_told(tmp_path):
    """Two profiles of one model: the document shows the first per variant, and a note names both."""
    plan = _plan(tmp_path, "step_time.roofline=h100-sxm,a100-sxm", data=queue(0.5), replications=1)
    h100, a100 = (f"qwen2.5-0.5b-{name}-tp1-bf16-roofline" for name in ("h100-sxm", "a100-sxm"))
    assert plan.step_times["continuous-paged"]["name"] == h100
    assert f"the step times of continuous-paged are swept: {h100}, {a100}" in plan.notes


def test_a_closed_loop_has_clients_as_its_load(tmp_path):
    """Concurrency: more clients, more waiting, never a growing backlog."""
    data = queue(0.5, 200)
    del data["workload"]["arrivals"]
    data["workload"]["concurrency"] = 1
    document = _document(_plan(tmp_path, "workload.concurrency=1,4,16", data=data, replications=1))
    assert document["load_axis"] == "workload.concurrency"
    assert not any(point["grows"] for point in document["points"])
    waits = [point["metrics"]["queue_time_s.mean"]["value"] for point in document["points"]]
    assert waits == pytest.approx([0.0, 3 * service_s(), 15 * service_s()], rel=0.1, abs=1e-9)


def test_what_only_some_variants_have_is_empty_for_the_others(tmp_path):
    """A cache that finds prefixes again has a hit rate; one that does not has none, whichever stands first."""
    caching = {"engine": {"policy": "chunked", "kv_cache": {"allocator": "paged", "prefix_caching": True}}}
    data = {**queue(0.5, 60), "variants": {"with": caching, "without": {}}}
    for each in (data, {**data, "variants": {"without": {}, "with": caching}}):
        plan = _plan(tmp_path, RATE + "=" + _rates(0.5), data=each, replications=1)
        frame = points_frame(_document(plan)).set_index("variant")
        assert frame["prefix_hit_rate"].isna().to_dict() == {"with": False, "without": True}


def test_a_rate_of_sessions_is_called_one(tmp_path):
    """Sessions per second, and the page says so; of requests it is by its key."""
    data = queue(0.5, 60)
    data["workload"]["sessions"] = {"turns": {"fixed": 2}}
    document = _document(_plan(tmp_path, RATE + "=" + _rates(0.1, 0.2), data=data, replications=1))
    assert document["load_words"] == "sessions/s offered"
    assert SweepData(document).load.label == "sessions/s offered"
    assert "load_words" not in _document(_plan(tmp_path, RATE + "=" + _rates(0.1, 0.2), replications=1))


def _trace(folder, n=50):
    rows = "\n".join(f"{i * 0.01},{100 + i},3" for i in range(n))
    (folder / "t.csv").write_text(f"arrival_s,num_prompt_tokens,num_output_tokens\n{rows}\n")
    return {**queue(0.5), "workload": {"trace": "t.csv"}}


def test_sessions_of_a_trace_are_drawn_whole_and_the_note_says_so(tmp_path):
    """Where turns wait for answers; about ⌈√50⌉ = 8 requests in a block."""
    data = _trace(tmp_path)
    rows = "".join(f"{i},100,3,{i},\n,110,3,{i},1\n" for i in range(25))
    (tmp_path / "t.csv").write_text(f"arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s\n{rows}")
    notes = _plan(tmp_path, "workload.rate_scale=0.5,1", data=data, replications=2).notes
    assert any("in blocks of whole sessions, about 8 requests (workload.resample)" in note for note in notes)


def test_a_trace_is_resampled_for_replications_and_the_note_says_so(tmp_path):
    """Blocks of ⌈√50⌉ = 8; one replication replays the trace as it is; a scenario's own blocks stand."""
    data = _trace(tmp_path)
    plan = _plan(tmp_path, "workload.rate_scale=0.5,1", data=data, replications=2)
    assert [each["workload"]["resample"] for each in plan.data] == [{"block_requests": 8}] * 2
    assert any("in blocks of 8 consecutive requests" in note for note in plan.notes)
    assert "resample" not in _plan(tmp_path, data=data, replications=1).data[0]["workload"]
    own = {**data, "workload": {**data["workload"], "resample": {"block_requests": 5}}}
    assert _plan(tmp_path, data=own, replications=2).data[0]["workload"]["resample"] == {"block_requests": 5}
    first, second = (run_task(each)["continuous-paged"] for each in plan.measured()[:2])
    assert first["mean_prompt_tokens"] != second["mean_prompt_tokens"]


def test_the_block_in_the_file_is_taken_and_the_command_line_comes_first(tmp_path):
    """sweep: gives axes and replications; --over of the same key and --replications replace them; --set reaches it."""
    data = {
        **queue(0.5),
        "sweep": {"over": {"engine.max_num_seqs": "1:3:3"}, "replications": 2, "metric": "ttft_s.p90"},
    }
    plan = _plan(tmp_path, data=data)
    assert [each["engine.max_num_seqs"] for each in plan.settings] == [1, 2, 3]
    assert (plan.config.replications, plan.config.metric) == (2, "ttft_s.p90")
    assert all("sweep" not in each for each in plan.data)
    changed = _plan(tmp_path, "engine.max_num_seqs=7", data=data, replications=4, overrides=["sweep.metric=e2e_s.p50"])
    assert changed.settings == ({"engine.max_num_seqs": 7},)
    assert (changed.config.replications, changed.config.metric) == (4, "e2e_s.p50")


def test_the_command_of_a_point_gives_its_scenario(tmp_path, monkeypatch):
    """Applying the command's own --set words to the file gives the data that the sweep simulated, paths included."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    data = _trace(tmp_path / "files")
    data["sweep"] = {"over": {"workload.trace": ["t.csv"], "workload.rate_scale": [0.5, 2]}}
    write(tmp_path / "files", data, "queue.yaml")
    path = (tmp_path / "files" / "queue.yaml").relative_to(tmp_path)
    options = SweepOptions(path, over=("engine.max_num_seqs=3",), overrides=("seed=4", "slo.ttft_s=1"), replications=2)
    plan = build_plan(options)
    words = run_command(plan, 1, path, options.overrides).split()
    assert words[:3] == ["simserve", "run", "files/queue.yaml"]
    assert words[-2:] == ["--seed", "4"]
    overrides = [text for flag, text in itertools.pairwise(words) if flag == "--set"]
    assert "workload.trace=files/t.csv" in overrides
    assert "seed=4" not in overrides
    replayed, swept = load_scenario(path, [*overrides, "seed=4"]), plan.task(1, 0).scenario()
    assert replayed.engine == swept.engine
    assert replayed.slo == swept.slo
    assert replayed.workload.model_copy(update={"trace": "t.csv"}) == swept.workload


def test_text_that_yaml_would_read_otherwise_is_quoted(tmp_path):
    """A profile called "1e3" or "null" must come back as text."""
    data = apply_overrides(queue(0.5), [])
    plan = _plan(tmp_path, "variants.one.engine.queue_order='fcfs'", data={**data, "variants": {"one": {}}})
    assert "--set variants.one.engine.queue_order=fcfs" in run_command(plan, 0, tmp_path / "queue.yaml")
    plan.settings[0]["variants.one.engine.queue_order"] = "null"
    assert """--set 'variants.one.engine.queue_order="null"'""" in run_command(plan, 0, tmp_path / "queue.yaml")


def test_the_table_has_a_row_per_point_and_reads_back(swept, tmp_path):
    """points.parquet: settings, variant, verdicts, and value, low and high of every metric."""
    _, document = swept
    frame = points_frame(document)
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    points_frame(json.loads(to_json(document))).to_parquet(tmp_path / "b.parquet", index=False)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    read = pd.read_parquet(tmp_path / "a.parquet")
    assert len(read) == 8
    point = document["points"][3]
    row = read.iloc[3]
    assert (row["variant"], row[RATE]) == ("two", point["settings"][RATE])
    interval = point["metrics"]["ttft_s.p99"]
    assert [row["ttft_s.p99"], row["ttft_s.p99.low"], row["ttft_s.p99.high"]] == [
        interval[key] for key in ("value", "low", "high")
    ]


def test_values_of_several_types_become_text_in_the_table(tmp_path):
    """A column of parquet has one type; whole and broken numbers are numbers."""
    document = _document(_plan(tmp_path, "slo.ttft_s=null,1,2.5", "engine.kv_cache.num_blocks=640", replications=1))
    frame = points_frame(document)
    assert frame["engine.kv_cache.num_blocks"].dtype.kind == "i"
    assert frame["slo.ttft_s"].isna().tolist() == [True] * 2 + [False] * 4
    mixed = copy.deepcopy(document)
    mixed["points"][0]["settings"]["slo.ttft_s"] = "none"
    assert points_frame(mixed)["slo.ttft_s"].tolist()[0] == "none"


def _fake_plan(tmp_path, num, reports):
    rates = ",".join(str(i + 1) for i in range(num))
    return _plan(tmp_path, f"{RATE}={rates}", data=queue(0.1), replications=1, reports=reports)


def test_reports_are_for_all_or_for_the_telling_points(tmp_path):
    """Up to 24 settings all; of 30 only both ends, around the knee and where it saturates; all and none are obeyed."""
    few, many = _fake_plan(tmp_path, MAX_REPORTS, "some"), _fake_plan(tmp_path, 30, "some")
    curve = {"points": list(range(30)), "knee": {"value": 10.4}, "saturated_from": 21.0}
    document = {"curves": [curve]}
    assert chosen_settings(few, document) == list(range(24))
    assert chosen_settings(many, document) == [0, 9, 10, 19, 20, 29]
    assert chosen_settings(many, {"curves": [{**curve, "knee": None, "saturated_from": None}]}) == [0, 29]
    assert chosen_settings(_fake_plan(tmp_path, 30, "all"), document) == list(range(30))
    assert chosen_settings(_fake_plan(tmp_path, 3, "none"), document) == []


def test_the_printed_table_has_a_line_per_curve(swept, capsys):
    """Curves with where they saturate; without a load a line per point, where a growing backlog is said."""
    from rich.console import Console

    _, document = swept
    console = Console(width=150)
    print_sweep(document, console)
    text = capsys.readouterr().out
    assert "queue: qwen2.5-0.5b, 8 points, 3 replications" in text
    rows = [line for line in text.splitlines() if line.strip().startswith(("one", "two"))]
    assert len(rows) == 2
    assert f"{document['points'][6]['settings'][RATE]:.3g}" in rows[0]
    print_sweep({**document, "load_axis": None, "curves": []}, console)
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if line.strip().startswith(("one", "two"))]
    assert len(rows) == 8
    assert "grows" in rows[6]
