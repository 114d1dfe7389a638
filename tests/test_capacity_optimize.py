"""Search over settings: what optuna tries is kept, and a search that was interrupted goes on as if it had not been."""

import sqlite3
import sys
from dataclasses import replace

import pytest

from simserve.capacity.cost import Question
from simserve.capacity.optimize import Search, search_capacities
from simserve.capacity.row import Asked
from simserve.capacity.search import Effort
from simserve.capacity.slo import parse_slo
from simserve.errors import InputError
from simserve.knee.study import study_of
from simserve.tasks.axes import build_axes
from tests.scenario_builders import small
from tests.study_builders import FakeRunner, measures, study

AXES = ("engine.max_num_seqs=1:64:8:log", "engine.kv_cache.block_size=8,16,32")


def best_at_sixteen(load, replication, task):
    """16 slots carry most: fewer are too few, and each beyond slows the others."""
    n = task.data["engine"]["max_num_seqs"]
    mu = n if n <= 16 else 16 - 0.2 * (n - 16)
    overloaded = load is None or load >= mu
    return measures(1e3, backlogged_rps=mu) if overloaded else measures(1 / (1 - load / mu))


class Interrupted(Exception):
    """Somebody's Ctrl-C."""


def interrupted_after(num_asked):
    """A runner that dies in the middle of a trial."""
    left = [num_asked]

    def of(load, replication, task):
        left[0] -= 1
        if left[0] < 0:
            raise Interrupted
        return best_at_sixteen(load, replication, task)

    return FakeRunner(of)


def run(path, trials, runner=None, question=None, axes=AXES, **changes):
    found = study(**changes)
    search = Search(trials, tuple(build_axes(found.data, "small.yaml", {}, axes)), f"sqlite:///{path}")
    asked = Asked((parse_slo("ttft_p99=4s"),), question or Question(None, 2.0), Effort())
    return search_capacities(found, runner or FakeRunner(best_at_sixteen), asked, search)


def tried(document):
    return sorted((tuple(row["settings"].items()), row["variant"]) for row in document["rows"])


def test_a_search_finds_the_good_end_of_an_axis(tmp_path):
    """Of 14 settings the best is near 16 slots, rows are sorted by cost, and values are those of the axes."""
    document = run(tmp_path / "a.db", 14)
    best = document["rows"][0]["settings"]
    assert 12 <= best["engine.max_num_seqs"] <= 22
    costs = [row["cost_per_million_output_tokens"]["value"] for row in document["rows"]]
    assert costs == sorted(costs)
    for row in document["rows"]:
        assert 1 <= row["settings"]["engine.max_num_seqs"] <= 64
        assert row["settings"]["engine.kv_cache.block_size"] in (8, 16, 32)
    assert any("14 settings tried" in note for note in document["notes"])


def test_an_interrupted_search_goes_on_as_if_it_had_not_been(tmp_path):
    """Killed inside a trial and resumed: the very settings of an uninterrupted one, and no completed trial again."""
    whole = run(tmp_path / "whole.db", 6)
    with pytest.raises(Interrupted):
        run(tmp_path / "part.db", 6, interrupted_after(260))
    kept = sqlite3.connect(tmp_path / "part.db").execute("select state from trials").fetchall()
    completed = kept.count(("COMPLETE",))
    assert 0 < completed < 6
    resumed_runner = FakeRunner(best_at_sixteen)
    resumed = run(tmp_path / "part.db", 6, resumed_runner)
    assert tried(resumed) == tried(whole)
    fresh_runner = FakeRunner(best_at_sixteen)
    run(tmp_path / "fresh.db", 6, fresh_runner)
    assert len(resumed_runner.asked) < len(fresh_runner.asked)


def test_a_finished_search_simulates_nothing_again(tmp_path):
    """The same command prints the same table."""
    first = run(tmp_path / "a.db", 5)
    runner = FakeRunner(best_at_sixteen)
    assert run(tmp_path / "a.db", 5, runner) == first
    assert runner.asked == []


def test_another_question_is_another_search(tmp_path):
    """In the same storage: without a price capacity is maximised, and nothing is taken from the other search."""
    run(tmp_path / "a.db", 4)
    runner = FakeRunner(best_at_sixteen)
    document = run(tmp_path / "a.db", 4, runner, Question())
    assert runner.asked != []
    capacities = [row["capacity"]["value"] for row in document["rows"]]
    assert capacities == sorted(capacities, reverse=True)


def test_a_file_that_changed_is_another_search(tmp_path, monkeypatch):
    """A trace of the scenario, or one that only a value of an axis names: nothing is taken from before. Nor is it with
    another version of simserve, or when intervals leave the noise of calibration out."""
    row = '{{"timestamp": {}, "input_length": 10, "output_length": 5, "hash_ids": [1]}}\n'
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("".join(row.format(1000 * i) for i in range(40)))
    monkeypatch.chdir(tmp_path)
    data = {**small(step_time={"roofline": "laptop-cpu", "dtype": "fp32"}), "workload": {"trace": "a.jsonl"}}
    search = Search(1, tuple(build_axes(data, "x", {}, ("workload.trace=a.jsonl,b.jsonl",))), f"sqlite:///{tmp_path}/s")
    asked = Asked((parse_slo("ttft_p99=4s"),), Question(), Effort(1, 1))

    def asks_anything(noise=True):
        runner = FakeRunner(best_at_sixteen)
        found = study_of(data, "x", tmp_path, 1)
        search_capacities(replace(found, calibration_noise=noise), runner, asked, search)
        return runner.asked != []

    assert asks_anything() and not asks_anything()
    for name in ("a.jsonl", "b.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write(row.format(50_000))
        assert asks_anything() and not asks_anything()
    assert asks_anything(noise=False)
    monkeypatch.setattr("simserve.__version__", "99")
    assert asks_anything()


def test_no_setting_is_tried_twice(tmp_path):
    """Two values and two trials: both. Five trials of them: both, and it is said that there are no more."""
    for trials in (2, 5):
        document = run(tmp_path / f"{trials}.db", trials, axes=("engine.max_num_seqs=4,8",))
        assert sorted(row["settings"]["engine.max_num_seqs"] for row in document["rows"]) == [4, 8]
        assert any("no further settings" in note for note in document["notes"]) == (trials == 5)


def test_variants_are_searched_over_too(tmp_path):
    """Which variant is one of the choices."""
    changes = {"variants": {"paged": {}, "contiguous": {"engine": {"kv_cache": {"allocator": "contiguous"}}}}}
    document = run(tmp_path / "a.db", 6, axes=AXES[:1], **changes)
    assert {row["variant"] for row in document["rows"]} == {"paged", "contiguous"}


def test_a_setting_without_capacity_is_the_worst(tmp_path):
    """And is in the table with its reason, last."""

    def of(load, replication, task):
        slow = task.data["engine"]["kv_cache"]["block_size"] == 8
        return measures(9.0, backlogged_rps=8.0) if slow else best_at_sixteen(load, replication, task)

    rows = run(tmp_path / "a.db", 6, FakeRunner(of))["rows"]
    without = [row["capacity"]["value"] is None for row in rows]
    assert any(without) and without == sorted(without)


def test_a_storage_that_cannot_be_opened_is_a_sentence(tmp_path):
    """What was given, and what would do."""
    found = study()
    asked = Asked((parse_slo("ttft_p99=4s"),), Question(), Effort())
    for storage in ("nonsense://x", f"sqlite:///{tmp_path}/no/such/folder/a.db"):
        search = Search(2, tuple(build_axes(found.data, "small.yaml", {}, AXES)), storage)
        with pytest.raises(InputError) as caught:
            search_capacities(found, FakeRunner(best_at_sixteen), asked, search)
        message = str(caught.value)
        assert message.startswith(f"--storage {storage}: must be a storage that optuna can open")
        assert "\n" not in message


def test_without_optuna_the_extra_is_named(tmp_path, monkeypatch):
    """One sentence with the command that installs it."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"--search: needs optuna; install it with: pip install 'simserve\[search\]'"):
        run(tmp_path / "a.db", 2)
