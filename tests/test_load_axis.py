"""What is turned when load is turned, and the loads that can be set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.knee.load_axis import LoadAxis, load_axis
from simserve.knee.study import Ask, open_study, study_of
from simserve.scenario import parse_scenario
from tests.scenario_builders import SMALL, small, write
from tests.study_builders import study

TRACE = "arrival_s,num_prompt_tokens,num_output_tokens\n" + "".join(f"{i * 0.5},10,5\n" for i in range(50))


def trace_data(tmp_path, **workload):
    (tmp_path / "t.csv").write_text(TRACE)
    return small(step_time={"roofline": "laptop-cpu", "dtype": "fp32"}, workload={"trace": "t.csv", **workload})


def test_an_open_loop_is_turned_by_its_rate():
    """Whatever the process; everything else of the workload stays."""
    axis = study(workload__arrivals={"process": "gamma", "rate_rps": 3.0, "cv": 2.0}).axis
    data = axis.at(SMALL, 7.25)
    assert (axis.key, axis.base_rps, axis.is_closed_loop) == ("workload.arrivals.rate_rps", 1.0, False)
    assert data["workload"]["arrivals"] == {"process": "poisson", "rate_rps": 7.25}
    assert data["workload"]["output_tokens"] == SMALL["workload"]["output_tokens"]
    assert SMALL["workload"]["arrivals"]["rate_rps"] == 1.0


def test_sessions_are_turned_by_their_own_rate():
    """Two turns each: one session a second is two requests a second."""
    axis = study(workload__num_requests=40, workload__sessions={"turns": {"fixed": 2}}).axis
    assert (axis.key, axis.unit, axis.base_rps) == ("workload.arrivals.rate_rps", "sessions/s", 2.0)
    parse_scenario(axis.at(small(workload__sessions={"turns": {"fixed": 2}}), 0.5))


def test_everybody_at_once_is_a_valid_scenario_of_the_same_requests():
    """Only the arrivals change."""
    data = study().axis.everybody_at_once(SMALL)
    assert data["workload"] == {**SMALL["workload"], "arrivals": {"process": "all_at_once"}}
    parse_scenario(data)


def test_a_closed_loop_is_turned_by_its_clients():
    """Whole ones."""
    found = study(workload__arrivals=..., workload__concurrency=8)
    assert (found.axis.key, found.axis.base_rps) == ("workload.concurrency", None)
    assert found.axis.at(found.data, 12.0)["workload"]["concurrency"] == 12
    parse_scenario(found.axis.at(found.data, 12.0))


def test_a_trace_is_turned_by_its_scale_and_knows_its_own_rate(tmp_path):
    """50 requests half a second apart: 2 requests/s at scale 1. All at once is a very large scale."""
    found = study_of(trace_data(tmp_path, rate_scale=3.0), "s.yaml", tmp_path, 1)
    assert (found.axis.key, found.axis.base_rps, found.num_requests) == ("workload.rate_scale", 2.0, 50)
    assert found.axis.at(found.data, 0.5)["workload"]["rate_scale"] == 0.5
    assert found.axis.everybody_at_once(found.data)["workload"]["rate_scale"] >= 1e6
    assert found.notes == ()


def test_a_replicated_trace_is_resampled_in_blocks_and_says_so(tmp_path):
    """Blocks of about the root of its length, unless the scenario has its own."""
    found = study_of(trace_data(tmp_path), "s.yaml", tmp_path, 4)
    assert found.data["workload"]["resample"] == {"block_requests": 8}
    assert any("blocks of 8 consecutive requests" in note for note in found.notes)
    own = study_of(trace_data(tmp_path, resample={"block_requests": 3}), "s.yaml", tmp_path, 4)
    assert own.data["workload"]["resample"] == {"block_requests": 3} and own.notes == ()


def test_replications_share_their_requests_between_loads_and_variants():
    """Replication r has the scenario's seed + r, whatever the load and the variant."""
    found = study(seed=40)
    tasks = [found.task(variant, Ask(load, 2)) for variant in ("a", "b") for load in (None, 1.0, 2.0)]
    assert {task.seed for task in tasks} == {42}
    assert len({task.key() for task in tasks}) == 6


def test_a_tenth_of_a_long_generated_run_is_warm_up_and_it_is_said():
    """The rule is that of every study (``tasks.warmup``); the notes of a short one do not speak of it."""
    long, short = study(workload__num_requests=500), study(workload__num_requests=499)
    assert any("10%" in note for note in long.notes)
    assert short.notes == ()
    assert {each.task("v", Ask(1.0, 0)).warmup for each in (long, short)} == {"auto"}


def test_everybody_at_once_has_no_load_to_turn(tmp_path):
    """One sentence: where, the rule, the value and the remedy."""
    path = write(tmp_path, small(workload__arrivals={"process": "all_at_once"}))
    with pytest.raises(ScenarioError) as caught:
        open_study(path, (), None, 4)
    message = str(caught.value)
    assert message.startswith("small.yaml: workload.arrivals.process: ") and "(got all_at_once)" in message
    assert "rate_rps" in message and "concurrency" in message


def test_a_trace_without_duration_has_no_load_to_turn(tmp_path):
    """All of its requests at one instant cannot be scaled."""
    (tmp_path / "t.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens\n0,10,5\n0,10,5\n")
    with pytest.raises(ScenarioError, match=r"workload\.trace: must span some time"):
        study_of(small(workload={"trace": "t.csv"}), "s.yaml", tmp_path, 1)


def test_the_sweep_of_a_scenario_is_left_aside(tmp_path):
    """It says what `simserve sweep` does; overrides and the seed still count."""
    path = write(tmp_path, {**small(), "sweep": {"over": {"engine.max_num_seqs": [1, 2]}}})
    found = open_study(path, ("engine.max_num_seqs=2",), 9, 4)
    assert "sweep" not in found.data
    assert (found.scenario.seed, found.scenario.engine.max_num_seqs) == (9, 2)


def test_a_file_that_is_no_mapping_is_one_sentence(tmp_path):
    """As for every other command."""
    with pytest.raises(ScenarioError, match="must be a mapping"):
        open_study(write(tmp_path, "[1, 2]"), (), None, 4)


OPEN = LoadAxis("workload.arrivals.rate_rps", "", "requests/s", 1.0)
CLOSED = LoadAxis("workload.concurrency", "", "clients", None)


@given(st.sampled_from([OPEN, CLOSED]), st.lists(st.floats(1e-3, 1e5), max_size=8))
def test_loads_that_can_be_set(axis, loads):
    """Ascending, each once, whole clients at least one; setting them again changes nothing."""
    found = axis.distinct(loads)
    assert found == sorted(set(found)) and axis.distinct(found) == found
    assert not axis.is_closed_loop or all(load >= 1 and load == int(load) for load in found)


def test_load_axis_names_what_a_page_shows():
    """The document's ``load``."""
    axis = load_axis(SMALL, "small.yaml")
    assert axis.as_dict() == {
        "key": "workload.arrivals.rate_rps",
        "label": "offered load, requests/s",
        "unit": "requests/s",
        "base_rps": 1.0,
    }


TURNS = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s\n" + "".join(
    f"{i},10,5,{i},\n,20,5,{i},1\n" for i in range(8)
)


def test_sessions_of_a_trace_are_drawn_whole_and_that_is_told(tmp_path):
    """By what the replications do, in an open loop and where clients play them."""
    data = trace_data(tmp_path)
    (tmp_path / "t.csv").write_text(TURNS)
    for found in (data, {**data, "workload": {"trace": "t.csv", "concurrency": 2}}):
        notes = "".join(study_of(found, "s.yaml", tmp_path, 4).notes)
        assert "in blocks of whole sessions, about 4 requests (workload.resample)" in notes
        assert ("2 clients play its sessions" in notes) == ("concurrency" in found["workload"])


def test_clients_need_no_times_of_a_trace(tmp_path):
    """A closed loop over lengths alone is turned by its clients."""
    data = trace_data(tmp_path, concurrency=3)
    (tmp_path / "t.csv").write_text("num_prefill_tokens,num_decode_tokens\n" + "10,5\n" * 30)
    found = study_of(data, "s.yaml", tmp_path, 1)
    assert (found.axis.key, found.axis.base_rps, found.num_requests) == ("workload.concurrency", None, 30)
