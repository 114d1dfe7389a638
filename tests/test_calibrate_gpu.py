"""What a GPU needs beyond a CPU, against fakes: graphs of decode steps, cold inputs, clocks watched. No GPU is here."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from calibrate.gpu_clocks import (
    ClockReading,
    ClockWatch,
    gpu_name,
    note_slowed,
    parse_clocks,
    read_clocks,
    summarize_clocks,
)
from calibrate.grid import Point

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.forward import OnGpu, Stepper  # noqa: E402 - after the skips
from calibrate.graphs import DecodeGraphs, L2Eviction, make_eviction  # noqa: E402
from calibrate.kv_cache import InPlaceCaches  # noqa: E402
from calibrate.model import build_model, find_model  # noqa: E402

COOL = ClockReading(1980.0, 2619.0, 41.0, 312.5, ())
CAPPED = ClockReading(1410.0, 2619.0, 71.0, 700.0, ("power cap",))


class FakeStream:
    def wait_stream(self, _other: object) -> None: ...


class FakeCuda:
    """Captures what runs inside ``graph`` as one replayable call, and tells the order of things."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.replays = 0

    def Stream(self) -> FakeStream:
        return FakeStream()

    current_stream = Stream

    @contextmanager
    def stream(self, _stream: FakeStream) -> Iterator[None]:
        self.log.append("side stream")
        yield
        self.log.append("main stream")

    def CUDAGraph(self) -> FakeCuda:
        return self

    @contextmanager
    def graph(self, _graph: object) -> Iterator[None]:
        self.log.append("capture")
        yield
        self.log.append("captured")

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def tiny() -> Any:
    """Built before anything of torch is replaced."""
    return build_model(find_model("tiny"), "cpu", "fp32", "sdpa", 0)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in ("Stream", "current_stream", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    # A class, since others name it in their annotations.
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("CUDAGraph", (), {"replay": lambda _self: fake.replay()}))
    return fake


def test_a_step_is_captured_once_after_warming_beside_the_main_stream(cuda: FakeCuda) -> None:
    """Three laid-out runs on a side stream, one in the capture; the same shape is then only replayed, on new tokens in
    the same memory; another shape is captured anew."""
    graphs, seen = DecodeGraphs(), []

    def lay_out() -> None:
        cuda.log.append("lay out")

    def run(ids: Any) -> None:
        cuda.log.append("run")
        seen.append(ids)

    first = graphs.prepare("a", torch.tensor([[1]]), lay_out, run)
    assert cuda.log == ["side stream", *["lay out", "run"] * 3, "main stream", "lay out", "capture", "run", "captured"]
    again = graphs.prepare("a", torch.tensor([[2]]), lay_out, run)
    first()
    again()
    assert cuda.replays == 2 and len(seen) == 4
    assert all(ids is seen[0] for ids in seen) and seen[0].tolist() == [[2]]
    graphs.prepare("b", torch.tensor([[3]]), lay_out, run)
    assert len(seen) == 8 and cuda.log.count("capture") == 2


def test_decodes_are_replayed_and_prefills_are_not(tiny: Any, cuda: FakeCuda) -> None:
    """The stepper's step of a decode is one replay; a prefill runs the model; both find their inputs evicted."""
    evicted: list[int] = []
    caches = InPlaceCaches(find_model("tiny").spec, 256, tiny.dtype, tiny.device)
    stepper = Stepper(tiny, caches, 0, None, OnGpu(lambda: evicted.append(1), DecodeGraphs()))
    forwards: list[int] = []
    tiny.get_input_embeddings().register_forward_hook(lambda *_: forwards.append(1))

    stepper.prepare(Point("decode", 4, 1, 16))
    captured = len(forwards)
    stepper.step()
    assert (captured, len(forwards), cuda.replays, len(evicted)) == (4, 4, 1, 1)
    stepper.prepare(Point("prefill", 1, 8, 16))
    stepper.step()
    assert (len(forwards), cuda.replays, len(evicted)) == (5, 1, 2)


def test_eviction_writes_more_than_the_cache_holds() -> None:
    """Two buffers of its size, both written each time with another value; nothing happens on a CPU."""
    eviction = L2Eviction(1000, "cpu")
    eviction.evict()
    eviction.evict()
    assert [buffer.unique().tolist() for buffer in eviction._buffers] == [[2], [2]]
    assert sum(buffer.numel() for buffer in eviction._buffers) == 2000
    make_eviction("cpu")()


def test_clocks_are_read_as_the_driver_tells_them() -> None:
    """One line of CSV without units; the mask's bits that mean slower are named, idle (1) and application clocks (2)
    are not; a card without a power sensor has none."""
    assert parse_clocks("1980, 2619, 41, 312.50, 0x0000000000000000\n") == COOL
    assert parse_clocks("1410, 2619, 71, 700.0, 0x0000000000000004") == CAPPED
    slowed = parse_clocks("900, 2619, 90, [N/A], 0x000000000000006B")
    assert slowed.reasons == ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown")
    assert slowed.power_w is None


@pytest.mark.parametrize(
    "error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 5), subprocess.CalledProcessError(9, "x")]
)
def test_no_driver_means_no_reading(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing, hanging or failing tool, or an answer that is no reading, is no error: the profile says unknown."""

    def fail(*_args: object, **_kwargs: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    assert read_clocks() is None
    answer = subprocess.CompletedProcess([], 0, stdout="No devices were found\n")
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_kwargs: answer)
    assert read_clocks() is None


def test_the_gpu_that_torch_uses_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """By UUID, since torch may be shown a subset; by index where torch does not tell."""
    asked: list[str] = []

    def run(command: list[str], **_kwargs: object) -> Any:
        asked.extend(command)
        return subprocess.CompletedProcess(command, 0, stdout="1980, 2619, 41, 312.5, 0x0")

    monkeypatch.setattr(subprocess, "run", run)

    class Properties:
        uuid = "1234-56"

    assert read_clocks(gpu_name(Properties())) == COOL
    assert "--id=GPU-1234-56" in asked
    assert gpu_name(object()) == "0"


def test_what_slowed_the_gpu_is_told() -> None:
    """Range of clocks, hottest reading, share of readings in which a reason held; silence where all was well; said
    where nothing could be read."""
    answers = iter([COOL, CAPPED, None, COOL, COOL])
    watch = ClockWatch(lambda: next(answers))
    for _ in range(5):
        watch.look()
    clocks = summarize_clocks(watch.readings)
    assert clocks is not None
    assert (clocks.num_readings, clocks.min_sm_mhz, clocks.median_sm_mhz, clocks.max_temperature_c) == (
        4,
        1410,
        1980,
        71,
    )
    assert clocks.slowed == {"power cap": 0.25}
    assert note_slowed(clocks) == ["the GPU was slowed (power cap in 25% of 4 readings; 1410 MHz at the lowest)"]
    assert note_slowed(summarize_clocks([COOL])) == []
    assert summarize_clocks([]) is None and "not known" in note_slowed(None)[0]
