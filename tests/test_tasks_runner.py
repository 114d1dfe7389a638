"""Where tasks run makes no difference: this process, workers, a dask cluster; workers that die; interruptions."""

import errno
import importlib.util
import json
import os
import signal
import time
from concurrent.futures import Executor, Future
from functools import partial

import pytest

from simserve.errors import InputError, OutputError, ScenarioError, TraceError
from simserve.tasks.executors import executor_for
from simserve.tasks.processes import InProcess, WorkerProcesses
from simserve.tasks.runner import Runner
from simserve.tasks.store import PointStore
from simserve.tasks.task import Task, run_task
from tests.sweep_builders import queue, task

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="needs dask.distributed: pip install 'simserve[cluster]'"
)
TASKS = [task(queue(utilization, 600), seed) for utilization in (0.3, 0.6, 0.9, 1.5) for seed in range(3)]


def _as_bytes(results):
    return json.dumps(results).encode()


def _run(executor, path, tasks=TASKS, store_type=PointStore):
    with store_type(path) as store, Runner(executor, store) as runner:
        return runner.run(tasks), runner.num_run


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The tasks' results, run one after the other in this process."""
    return _as_bytes(_run(InProcess(), tmp_path_factory.mktemp("expected") / "points.jsonl")[0])


class Backwards(Executor):
    """Finishes what it is given in reverse, once asked for all of it."""

    def __init__(self):
        self.waiting = []

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        self.waiting.append((future, partial(fn, *args, **kwargs)))
        if len(self.waiting) == len(TASKS):
            for each, call in reversed(self.waiting):
                each.set_result(call())
        return future


def test_results_are_in_the_order_of_the_tasks_whatever_finishes_first(tmp_path, expected):
    """An executor that works backwards: the last task is stored first, and the results are the same."""
    results, _ = _run(Backwards(), tmp_path / "points.jsonl")
    assert _as_bytes(results) == expected
    stored = [json.loads(line)["key"] for line in (tmp_path / "points.jsonl").read_text().splitlines()[1:]]
    assert stored[0] == TASKS[-1].key()
    assert sorted(stored) == sorted(each.key() for each in TASKS)


def test_what_is_kept_is_not_run_again(tmp_path, expected):
    """A second run of the same tasks simulates nothing; a longer list only what is new; equal tasks run once."""
    path = tmp_path / "points.jsonl"
    assert _run(InProcess(), path, TASKS[:5])[1] == 5
    results, num_run = _run(InProcess(), path, [*TASKS, *TASKS[:2]])
    assert num_run == len(TASKS) - 5
    assert _as_bytes(results[: len(TASKS)]) == expected
    assert results[len(TASKS) :] == results[:2]
    assert _run(InProcess(), path)[1] == 0


def test_two_processes_give_the_same_bytes(tmp_path, expected):
    """Each worker imports, builds and simulates by itself."""
    with executor_for(2) as executor:
        results, num_run = _run(executor, tmp_path / "points.jsonl")
    assert (_as_bytes(results), num_run) == (expected, len(TASKS))


class Killing(PointStore):
    """Kills a worker after the third result; ``victim`` names it."""

    victim = None

    def put(self, key, result):
        super().put(key, result)
        if len(self) == 3:
            os.kill(type(self).victim(), signal.SIGKILL)


def test_a_process_that_is_killed_is_replaced_and_its_task_run_again(tmp_path, expected):
    """SIGKILL in mid-run: all results are there, to the byte, and each was stored once."""
    with WorkerProcesses(2) as executor:
        Killing.victim = staticmethod(lambda: next(iter(executor._pool._processes)))
        results, _ = _run(executor, tmp_path / "points.jsonl", store_type=Killing)
    assert _as_bytes(results) == expected
    assert len((tmp_path / "points.jsonl").read_text().splitlines()) == 1 + len(TASKS)


def _die(seconds):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_task_that_kills_every_worker_ends_in_one_sentence():
    """A fresh pool is tried three times, not for ever."""
    with WorkerProcesses(2) as executor:
        future = executor.submit(_die, 0.01)
        with pytest.raises(InputError, match=r"^--workers 2: worker processes died 4 times \(out of memory\?\)"):
            future.result(timeout=60)


def test_interrupted_workers_are_gone_and_results_are_kept(tmp_path):
    """An exception leaves the block: no worker process outlives it, and the store holds what was finished."""
    path = tmp_path / "points.jsonl"

    class Interrupted(PointStore):
        def put(self, key, result):
            super().put(key, result)
            if len(self) == 3:
                raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), executor_for(2) as executor:
        executor.submit(time.sleep, 60)
        pids = list(executor._pool._processes)
        _run(executor, path, store_type=Interrupted)
    assert time.monotonic() - began < 30
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with PointStore(path) as store:
        assert len(store) == 3


@pytest.mark.parametrize("num_workers", [1, 2])
def test_wrong_input_found_by_a_worker_is_the_same_sentence(tmp_path, num_workers):
    """An InputError crosses processes as it is; results before it are kept."""
    bad = {**queue(0.5), "workload": {"trace": "nowhere.csv"}}
    with pytest.raises(TraceError, match=r"nowhere\.csv"), executor_for(num_workers) as executor:
        _run(executor, tmp_path / "points.jsonl", [TASKS[0], task(bad)])


@needs_dask
def test_a_dask_cluster_gives_the_same_bytes_though_a_worker_is_killed(tmp_path, expected):
    """Two local workers, SIGKILL to one in mid-run: dask's scheduler runs its tasks again."""
    told = []
    with executor_for(2, "local", told.append) as executor:
        pids = list(executor._client.run(os.getpid).values())
        assert len(pids) == 2
        Killing.victim = staticmethod(lambda: pids[0])
        results, num_run = _run(executor, tmp_path / "points.jsonl", store_type=Killing)
    assert (_as_bytes(results), num_run) == (expected, len(TASKS))
    assert told[0].startswith("dask cluster: 2 workers, dashboard at http")


@needs_dask
def test_an_address_without_a_scheduler_is_one_sentence(monkeypatch):
    """Nobody listens there, or the address is none."""
    monkeypatch.setattr("simserve.tasks.executors.CONNECT_TIMEOUT_S", 0.5)
    for address in ("tcp://127.0.0.1:1", "nonsense://x"):
        with (
            pytest.raises(
                InputError, match=rf"^--cluster {address}: must be 'local' or the address of a dask scheduler"
            ),
            executor_for(1, address),
        ):
            pass


def test_without_dask_the_extra_is_named(monkeypatch):
    """What to install, in one sentence."""
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'simserve\[cluster\]'"), executor_for(1, "local"):
        pass


def test_no_more_than_a_window_of_tasks_is_handed_over(tmp_path, expected, monkeypatch):
    """Futures cost memory: of twelve tasks at most four are with the executor at a time; all are run, once."""
    monkeypatch.setattr("simserve.tasks.window.MAX_IN_FLIGHT", 4)
    waiting, most = [], []

    class Counting(WorkerProcesses):
        def submit(self, fn, /, *args, **kwargs):
            waiting.append(super().submit(fn, *args, **kwargs))
            most.append(sum(not future.done() for future in waiting))
            return waiting[-1]

    with Counting(1) as executor:
        results, num_run = _run(executor, tmp_path / "points.jsonl")
    assert (_as_bytes(results), num_run, len(waiting)) == (expected, len(TASKS), len(TASKS))
    assert max(most) <= 4


@pytest.mark.parametrize("what", ["trace", "revision"])
def test_a_worker_that_would_simulate_something_else_is_refused(tmp_path, monkeypatch, what):
    """Another trace at the same path, or another checkout: its results would be kept under this process' key."""
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,num_prompt_tokens,num_output_tokens\n0,10,5\n")
    asked = Task({**queue(0.5), "workload": {"trace": "t.csv"}}, "x.yaml", str(tmp_path), 0)

    class Elsewhere(InProcess):
        def submit(self, fn, /, *args, **kwargs):
            if what == "trace":
                trace.write_text("arrival_s,num_prompt_tokens,num_output_tokens\n0,10,6\n")
            else:
                monkeypatch.setattr("simserve.tasks.task.code_revision", lambda: "another")
            return super().submit(fn, *args, **kwargs)

    with pytest.raises(InputError, match=r"^x\.yaml: the worker on .*: must have the same simserve and files"):
        _run(Elsewhere(), tmp_path / "points.jsonl", [asked])
    with PointStore(tmp_path / "points.jsonl") as store:
        assert len(store) == 0


def test_a_key_is_all_that_the_results_depend_on():
    """Any field that changes results changes the key; where the files lie and what messages call them do not."""
    data = queue(0.5)
    keys = {
        task(data).key(),
        task(queue(0.6)).key(),
        task(data, seed=1).key(),
        task(data, calibration_draw=0).key(),
        task(data, variants=("continuous-paged",)).key(),
        task(data, warmup=0.1).key(),
        task(data, stop_early=False).key(),
    }
    assert len(keys) == 7
    assert Task(data, "other.yaml", "/", 0).key() == task({**data, "seed": 5}).key() == task(data).key()


def test_a_key_follows_the_content_of_the_files_it_names(tmp_path):
    """A trace that changed, under the same name, is another task; the same trace elsewhere is not."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens\n0,10,5\n")
    data = {**queue(0.5), "workload": {"trace": "t.csv"}}
    first, second = (Task(data, "x.yaml", str(tmp_path / folder), 0) for folder in ("a", "b"))
    assert first.key() == second.key()
    (tmp_path / "b" / "t.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens\n0,10,6\n")
    assert first.key() != second.key()
    assert run_task(first)["continuous-paged"]["mean_output_tokens"] == 5


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    """The system's words, and another place as the remedy; what was kept before stays."""

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with PointStore(tmp_path / "points.jsonl") as store:
        store.put("a", {})
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(OutputError, match=r"cannot be written \(no space left on device\)"):
            store.put("b", {})
        assert "a" in store and "b" not in store


def test_a_scenario_error_of_a_task_names_its_file():
    """Messages begin with the scenario file, as those of `simserve run`."""
    with pytest.raises(ScenarioError, match=r"^queue\.yaml: engine\.max_num_seqs: must be ≥ 1"):
        run_task(task({**queue(0.5), "engine": {**queue(0.5)["engine"], "max_num_seqs": 0}}))
