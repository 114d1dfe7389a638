"""Files are whole or not there, and the machine is described by what it says of itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from calibrate.contention import read_machine
from calibrate.memory import free_bytes
from calibrate.partial import PartialFile, require_writable, write_atomically
from simserve.errors import OutputError
from tests.profile_builders import make_point, make_profile_text, make_sample

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
SAMPLES = [make_sample(make_point("decode", 2, 16), 0.5, order=i, dirty=i == 1) for i in range(3)]


def test_a_partial_file_gives_back_its_samples(tmp_path: Path) -> None:
    """What was measured survives, flags and all, beside the profile it will become."""
    partial = PartialFile(tmp_path / "p.json", {"device": "A"})
    assert partial.load() == []
    partial.save(SAMPLES)
    assert partial.path == tmp_path / "p.json.partial"
    assert PartialFile(tmp_path / "p.json", {"device": "A"}).load() == SAMPLES
    partial.remove()
    partial.remove()
    assert list(tmp_path.iterdir()) == []


def test_samples_of_another_device_are_not_mixed_in(tmp_path: Path) -> None:
    """Any difference in identity means another measurement."""
    PartialFile(tmp_path / "p.json", {"device": "A"}).save(SAMPLES)
    assert PartialFile(tmp_path / "p.json", {"device": "B"}).load() == []


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename is the last thing that happens."""
    path = tmp_path / "p.json"
    write_atomically(path, "old")

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match=r"p\.json: cannot be written \(No space left on device\)"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    """A folder, a folder that is not there, a file where a folder should be; a good place is left untouched."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "missing" / "p.json", tmp_path / "file" / "p.json"):
        with pytest.raises(OutputError) as caught:
            require_writable(path)
        assert "\n" not in str(caught.value)
    require_writable(tmp_path / "p.json")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_profile_file_keeps_one_sample_per_line() -> None:
    """So that a file can be read and two measurements compared line by line; it is JSON all the same."""
    profile, text = make_profile_text()
    assert json.loads(text)["digest"] == profile.digest
    lines = [line for line in text.splitlines() if '"other_cpus"' in line]
    assert len(lines) == len(profile.samples)
    assert max(map(len, text.splitlines())) < 1000


@on_linux
def test_the_machine_is_busy_at_least_as_long_as_this_process() -> None:
    """Counters of the whole machine include our own work, in the same unit (both in seconds)."""
    before = read_machine()
    total = 0
    while before is not None and (now := read_machine()) is not None and now.own_s - before.own_s < 0.1:
        total += sum(range(1000))
    assert before is not None and now is not None and total
    assert now.busy_s - before.busy_s >= 0.1 - 0.03  # ticks of 10 ms at either end


@on_linux
def test_free_memory_is_known_on_linux() -> None:
    """More than a megabyte and less than a petabyte: it is in bytes."""
    free = free_bytes("cpu")
    assert free is not None and 1 << 20 < free < 1 << 50
