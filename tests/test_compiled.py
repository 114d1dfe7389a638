"""The compiled engine against the one it stands in for: every column of every record, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve import compiled, simulate
from simserve.clients import OPEN_LOOP, ClientPlan
from simserve.compiled.run import run_if_plain
from simserve.engine import EngineOptions
from simserve.model_spec import load_model_spec
from simserve.records import FINISHED, Records
from simserve.request import RequestTable
from simserve.step_time.hardware import load_hardware
from simserve.step_time.roofline import RooflineStepTime
from tests.builders import build_scheduler
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime
from tests.strategies import Case, cases, settings_for, table_of

numba = pytest.importorskip("numba", reason="numba is not installed: pip install 'simserve[fast]'")
MODEL = load_model_spec("25m")
DEVICES = [RooflineStepTime(MODEL, load_hardware(name)) for name in ("h100-sxm", "laptop-cpu")]
PLAIN = {"allocator": "paged", "preemption": "recompute", "prefix_caching": False, "queue_order": "fcfs"}
ROWS = ("spans", "occupancy", "look_ups")


def differences(a: Records, b: Records) -> list[str]:
    """Names of whatever two runs recorded differently."""
    found = [name for name in vars(a) if name not in ("requests", *ROWS, "itl_counts")]
    found = [name for name in found if getattr(a, name) != getattr(b, name)]
    for name, column in vars(a.requests).items():
        other = getattr(b.requests, name)
        same = np.array_equal(column, other) if isinstance(column, np.ndarray) else column == other
        found += [] if name == "table" or same else [f"requests.{name}"]
    for rows in ROWS:
        ours, theirs = getattr(a, rows).columns(), getattr(b, rows).columns()
        found += [f"{rows}.{name}" for name in ours if not np.array_equal(ours[name], theirs[name])]
    return found + (["itl_counts"] if not np.array_equal(a.itl_counts, b.itl_counts) else [])


def both(table: RequestTable, s: Settings, step_time: RooflineStepTime) -> tuple[Records, Records]:
    """The same run by the engine and by the compiled one."""
    plain = simulate.run_engine(table, build_scheduler(s), step_time, EngineOptions(compiled_from=len(table) + 1))
    compiled = run_if_plain(table, build_scheduler(s), step_time, EngineOptions())
    assert compiled is not None
    return plain, compiled


@st.composite
def runs(draw: st.DrawFn, tight: bool) -> tuple[RequestTable, Settings, RooflineStepTime]:
    """Requests, a policy over a paged cache, and a device; arrivals anywhere, also in the middle of steps."""
    n = draw(st.integers(1, 40))
    gaps = draw(st.lists(st.integers(0, 2_000_000), min_size=n, max_size=n))
    longest = draw(st.sampled_from([6, 60, 400]))
    lengths = [draw(st.lists(st.integers(1, longest), min_size=n, max_size=n)) for _ in range(2)]
    table = table_of(np.cumsum(gaps).tolist(), *lengths)
    policy = draw(st.sampled_from(["chunked", "continuous"]))
    s = draw(settings_for(table, tight=tight, policy=policy, **PLAIN))
    return table, s, draw(st.sampled_from(DEVICES))


@settings(max_examples=150, deadline=None)
@given(runs(tight=False))
def test_the_same_records(run: tuple[RequestTable, Settings, RooflineStepTime]) -> None:
    """Every column of every request, span, slot, gap and total."""
    assert differences(*both(*run)) == []


@settings(max_examples=150, deadline=None)
@given(runs(tight=True))
def test_the_same_records_where_the_cache_is_tight(run: tuple[RequestTable, Settings, RooflineStepTime]) -> None:
    """With a cache barely larger than one request: refusals, preemptions, and what they compute again."""
    assert differences(*both(*run)) == []


def crowded(num_requests: int, gap_ns: int) -> RequestTable:
    rng = np.random.default_rng(0)
    lengths = [rng.lognormal(np.log(mean), 0.8, num_requests).astype(int) + 1 for mean in (300, 80)]
    return table_of(np.cumsum(rng.integers(0, 2 * gap_ns, num_requests)).tolist(), *(x.tolist() for x in lengths))


@pytest.mark.parametrize("policy", ["chunked", "continuous"])
@pytest.mark.parametrize(("gap_ns", "num_blocks"), [(3_000_000, 4000), (100_000, 4000), (100_000, 700)])
def test_a_crowd(policy: str, gap_ns: int, num_blocks: int) -> None:
    """3,000 requests over 64 slots, idle at times, overloaded, and preempting hundreds of times."""
    table = crowded(3000, gap_ns)
    s = Settings(
        policy=policy, max_num_seqs=64, max_num_batched_tokens=8192 if policy == "continuous" else 512,
        max_model_len=8192, allocator="paged", block_size=16, num_blocks=num_blocks, watermark=0.01,
    )  # fmt: skip
    plain, compiled = both(table, s, DEVICES[0])
    assert differences(plain, compiled) == []
    assert (plain.num_preemptions > 200) == (num_blocks == 700)


def test_more_rows_than_a_buffer_holds() -> None:
    """70,000 spans are fetched in several turns, and progress is told in between."""
    table = table_of(list(range(0, 70_000 * 50_000_000, 50_000_000)), [5] * 70_000, [2] * 70_000)
    s = Settings(policy="chunked", max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, allocator="paged",
                 block_size=4, num_blocks=64, watermark=0.0)  # fmt: skip
    told: list[int] = []
    records = run_if_plain(table, build_scheduler(s), DEVICES[0], EngineOptions(on_progress=told.append))
    assert records is not None and len(records.spans.rows) > 1 << 16
    assert told[-1] == 70_000 and len(told) >= 3 and told == sorted(told)
    begin, end = (records.spans.columns()[name] for name in ("begin_ns", "end_ns"))
    assert (begin[1:] == end[:-1]).all()


@settings(max_examples=30, deadline=None)
@given(cases(max_requests=8, allocator="paged"))
def test_what_it_does_not_know_it_leaves(case: Case) -> None:
    """Step times that are not a roofline, other policies and queue orders, swap and prefix caching: no records."""
    s = case.settings
    assert run_if_plain(case.table, build_scheduler(s), ConstantStepTime(0.01), EngineOptions()) is None
    plain = s.policy in ("chunked", "continuous") and s.queue_order == "fcfs" and s.speculation is None
    plain = plain and not s.prefix_caching and s.preemption == "recompute"
    taken = run_if_plain(case.table, build_scheduler(s), DEVICES[0], EngineOptions()) is not None
    assert taken == plain


@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(fast_forward=False),
        EngineOptions(async_scheduling=True),
        EngineOptions(max_queued_requests=3),
        EngineOptions(stop_when=lambda now, arrived, finished: False),
    ],
)
def test_options_that_it_does_not_know(options: EngineOptions) -> None:
    """Step by step, asynchronous, with a limit on the queue, or stopped early: left to the engine."""
    s = Settings(policy="chunked", max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, allocator="paged",
                 block_size=4, num_blocks=64, watermark=0.0)  # fmt: skip
    assert run_if_plain(table_of([0], [3], [2]), build_scheduler(s), DEVICES[0], options) is None


def test_clients_who_react_are_left_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed loop never asks it, however large; an open one does from ``compiled_from`` requests on."""
    asked: list[int] = []
    monkeypatch.setattr(simulate, "run_if_plain", lambda table, *rest: asked.append(len(table)))
    table = table_of([0, 1, 2], [3] * 3, [2] * 3)
    s = Settings(policy="chunked", max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, allocator="paged",
                 block_size=4, num_blocks=64, watermark=0.0)  # fmt: skip
    options = EngineOptions(compiled_from=3)
    simulate.run_engine(table, build_scheduler(s), DEVICES[0], options, ClientPlan(concurrency=1))
    assert asked == []
    simulate.run_engine(table, build_scheduler(s), DEVICES[0], replace(options, compiled_from=4), OPEN_LOOP)
    assert asked == []
    simulate.run_engine(table, build_scheduler(s), DEVICES[0], options, OPEN_LOOP)
    assert asked == [3]


def test_numba_is_loaded_only_when_it_runs() -> None:
    """Asking whether a run is plain costs nobody the second that numba takes to load."""
    code = "import sys, simserve.simulate, simserve.compiled.run; print('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


def test_without_a_place_for_machine_code_the_other_engine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed where nobody may write, for a user without a home, numba refuses to keep what it compiles ("no locator
    available"): the run is the other engine's, and no traceback is seen."""
    s = Settings(policy="chunked", max_num_seqs=2, max_num_batched_tokens=64, max_model_len=64, allocator="paged",
                 block_size=4, num_blocks=64, watermark=0.0)  # fmt: skip
    table = table_of([0, 1], [4, 4], [3, 3])
    monkeypatch.setattr(numba.core.caching.CompileResultCacheImpl, "_locator_classes", [])
    monkeypatch.delitem(sys.modules, "simserve.compiled.loop", raising=False)
    monkeypatch.delattr(compiled, "loop", raising=False)
    assert run_if_plain(table, build_scheduler(s), DEVICES[0], EngineOptions()) is None
    records = simulate.run_engine(table, build_scheduler(s), DEVICES[0], EngineOptions(compiled_from=1), OPEN_LOOP)
    assert (records.requests.status == FINISHED).all()
