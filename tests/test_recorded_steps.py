"""Step records: their file, a simulated run as the same records, and the first difference between two runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import RunError
from simserve.recorded.differences import compare_steps
from simserve.recorded.steps import (
    Decode,
    EngineRun,
    Prefill,
    ServedRequest,
    Stamp,
    StepRecord,
    read_engine_run,
    write_engine_run,
)
from simserve.recorded.watch import StepWatcher
from tests.builders import build_scheduler, run_engine
from tests.references import run_reference
from tests.strategies import Case, cases

ids = st.integers(0, 99)
counts = st.integers(0, 9999)
stamps = st.builds(Stamp, st.floats(0, 1e6), st.floats(0, 1e6))
steps = st.builds(
    StepRecord,
    prefills=st.lists(st.builds(Prefill, ids, counts, counts), max_size=3).map(tuple),
    decodes=st.lists(st.builds(Decode, ids, counts), max_size=3).map(tuple),
    admitted=st.lists(ids, max_size=3).map(tuple),
    preempted=st.lists(ids, max_size=3).map(tuple),
    num_batched_tokens=counts,
    free_blocks=st.none() | counts,
    begin=stamps,
    end=stamps,
)
served = st.builds(
    ServedRequest,
    id=ids,
    num_prompt_tokens=counts,
    num_output_tokens=counts,
    added_at_step=counts,
    arrival=stamps,
    first_scheduled=stamps,
    tokens=st.lists(stamps, max_size=4).map(tuple),
    num_preemptions=counts,
)
runs = st.builds(
    EngineRun,
    engine=st.text(max_size=9),
    versions=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    settings=st.dictionaries(st.text(max_size=5), st.none() | counts | st.booleans() | st.text(max_size=5), max_size=3),
    requests=st.lists(served, max_size=3).map(tuple),
    steps=st.lists(steps, max_size=3).map(tuple),
    notes=st.lists(st.text(max_size=9), max_size=2).map(tuple),
)
STEP = StepRecord((Prefill(2, 30, 0),), (Decode(0, 11), Decode(1, 5)), (2,), (), 32, 4)


@given(runs)
@settings(max_examples=50)
def test_a_file_gives_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, run: EngineRun) -> None:
    """Every field of every record, whatever is in it."""
    folder = tmp_path_factory.mktemp("run")
    for name in ("run.jsonl", "run.jsonl.gz"):
        write_engine_run(folder / name, run)
        assert read_engine_run(folder / name) == run
    before = (folder / "run.jsonl.gz").read_bytes()
    write_engine_run(folder / "again.gz", run)
    assert (folder / "again.gz").read_bytes() == before  # no name and no date in it


BAD = {
    "nothing": "",
    "no JSON": "hello\n",
    "a list": "[]\n",
    "something else": '{"kind": "trace"}\n',
    "another version": '{"kind": "engine run", "schema_version": 2}\n',
    "no engine": '{"kind": "engine run", "schema_version": 1}\n',
    "half a step": json.dumps(
        {"kind": "engine run", "schema_version": 1, "engine": "e", "versions": {}, "settings": {}}
    )
    + '\n{"step": {}}\n',
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_none_is_one_sentence(case: str, tmp_path: Path) -> None:
    """Named, said what it must be, on one line."""
    path = tmp_path / "run.jsonl"
    path.write_text(BAD[case])
    with pytest.raises(RunError, match=r"run\.jsonl: must ") as caught:
        read_engine_run(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    """As the system says it."""
    with pytest.raises(RunError, match=r"cannot be read .No such file"):
        read_engine_run(tmp_path / "none.jsonl")


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"{}" + data])
def test_a_damaged_archive_is_one_sentence(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """Cut off, or no archive at all."""
    path = tmp_path / "run.gz"
    write_engine_run(path, EngineRun("e", {}, {}, (), (STEP,)))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunError, match=r"run\.gz: (must|cannot) "):
        read_engine_run(path)


@given(st.sampled_from(["paged", "contiguous"]).flatmap(lambda allocator: cases(tight=True, allocator=allocator)))
@settings(max_examples=60, deadline=None)
def test_a_watched_run_is_the_slow_engine_s_step_by_step(case: Case) -> None:
    """Who prefills what over what, who decodes, who was admitted and preempted, and free room: for every policy and
    cache, as the reference engine says that it was."""
    table, s, step_time = case.table, case.settings, case.step_time
    watcher = StepWatcher(build_scheduler(s))
    run_engine(table, s, step_time, fast_forward=False, scheduler=watcher)
    reference = run_reference(case)
    assert len(watcher.steps) == len(reference.steps)
    for mine, step in zip(watcher.steps, reference.steps, strict=True):
        prefills = sorted(Prefill(w.seq_id, w.num_new, w.num_context) for w in step.works if w.is_prefill)
        decodes = sorted(Decode(w.seq_id, w.num_context) for w in step.works if not w.is_prefill)
        assert (sorted(mine.prefills), sorted(mine.decodes)) == (prefills, decodes)
        assert (sorted(mine.admitted), sorted(mine.preempted)) == (sorted(step.admitted), sorted(step.preempted))
        assert mine.num_batched_tokens == step.batch.num_batched_tokens
        assert mine.free_blocks == step.free
        assert mine.begin.wall_s == step.begin_ns / 1e9


def test_order_within_a_step_is_no_difference() -> None:
    """A batch is a set."""
    turned = replace(STEP, decodes=STEP.decodes[::-1])
    assert compare_steps([STEP], [turned]).first is None


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (replace(STEP, decodes=(Decode(0, 11),)), "decodes"),
        (replace(STEP, decodes=(Decode(0, 11), Decode(1, 6))), "decodes"),
        (replace(STEP, prefills=(Prefill(2, 29, 0),)), "prefills"),
        (replace(STEP, admitted=()), "admitted"),
        (replace(STEP, preempted=(3,)), "preempted"),
        (replace(STEP, free_blocks=5), "free_blocks"),
        (replace(STEP, num_batched_tokens=40), "num_batched_tokens"),
    ],
)
def test_the_first_difference_is_named_with_both_sides(other: StepRecord, field: str) -> None:
    """Each part of a composition counts; later differences are counted and not shown."""
    found = compare_steps([STEP, STEP, STEP, STEP], [STEP, other, STEP, other])
    assert (found.compared, found.identical) == (4, 2)
    assert found.first is not None
    assert (found.first.index, found.first.fields) == (1, (field,))
    assert (found.first.measured, found.first.simulated) == (STEP, other)
    words = str(found.first)
    assert words.startswith(
        f"step 1 differs in {field}: measured prefills 2 (30 over 0), decodes 0 (over 11) 1 (over 5)"
    )
    assert "; simulated prefills" in words and "\n" not in words


def test_a_cache_that_tells_no_blocks_is_compared_in_the_rest() -> None:
    """Static generate has none."""
    assert compare_steps([replace(STEP, free_blocks=None)], [STEP]).first is None


def test_a_run_that_ends_early_differs_there() -> None:
    """In both directions; the missing side says that it had ended."""
    for measured, simulated in (([STEP] * 3, [STEP]), ([STEP], [STEP] * 3)):
        found = compare_steps(measured, simulated)
        assert (found.compared, found.identical) == (3, 1)
        assert found.first is not None and found.first.index == 1 and "had ended" in str(found.first)


def test_long_lists_are_cut() -> None:
    """A sentence stays one that can be read."""
    crowd = replace(STEP, decodes=tuple(Decode(i, 1) for i in range(500)))
    found = compare_steps([crowd], [STEP])
    assert "and 488 more" in str(found.first) and len(str(found.first)) < 1000
