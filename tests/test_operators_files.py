"""Folders of operator tables: what is read, and one sentence for every folder that cannot be."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from simserve import assemble
from simserve.errors import InputError, ProfileError
from simserve.model_spec import load_model_spec
from simserve.request import Batch, Chunk
from simserve.scenario import parse_scenario
from simserve.step_time.operators import load_operators
from tests.operator_builders import DEVICE, SPEC, Device, step_time, write_llmservingsim, write_vidur
from tests.scenario_builders import small

BATCH = Batch((Chunk(16, 32),), 4, 4 * 32)


def rewrite(path: Path, change: Callable[[list[list[str]]], list[list[str]]]) -> None:
    """The csv at ``path`` with its rows (header first) changed."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(change(rows))


def test_the_folder_of_a_degree_or_the_one_around_it(tmp_path: Path) -> None:
    """``bf16`` with ``tp1`` in it, ``tp1`` itself, and a copy of it under any name hold the same tables."""
    folder = write_llmservingsim(tmp_path / "bf16")
    copy = tmp_path / "mine"
    copy.mkdir()
    for file in (folder / "tp1").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    found = [step_time(each).ramp(BATCH, 0).first_s for each in (folder, folder / "tp1", copy)]
    assert found[0] == found[1] == found[2]
    assert load_operators(copy, SPEC).origin.device == "unnamed device"


def test_compressed_tables_are_read(tmp_path: Path) -> None:
    """``mlp.csv.gz`` and ``attention_tp2.csv.gz``, as they are shipped to save space, with a byte order mark or not."""
    plain, packed = write_vidur(tmp_path / "plain"), tmp_path / "packed"
    packed.mkdir()
    (packed / "mlp.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + (plain / "mlp.csv").read_bytes()))
    (packed / "attention_tp2.csv.gz").write_bytes(gzip.compress((plain / "attention.csv").read_bytes()))
    first, second = (step_time(folder, 2).ramp(BATCH, 0) for folder in (plain, packed))
    assert first == second


def test_repeated_measurements_count_as_their_median(tmp_path: Path) -> None:
    """Three timings of one operator and size, one of them wild: the middle one stands."""
    folder = write_llmservingsim(tmp_path / "x")
    before = step_time(folder).ramp(BATCH, 0).first_s
    rewrite(
        folder / "tp1" / "dense.csv",
        lambda rows: [*rows, *[[o, t, "0"] for o, t, _ in rows[1:]], *[[o, t, "1e6"] for o, t, _ in rows[1:]]],
    )
    assert step_time(folder).ramp(BATCH, 0).first_s == pytest.approx(before, rel=1e-12)


def test_changed_tables_are_read_again(tmp_path: Path) -> None:
    """Tables are kept between runs of one process, until a file changes; the digest changes with them."""
    folder = write_llmservingsim(tmp_path / "x")
    first = step_time(folder)
    assert load_operators(folder, SPEC) is load_operators(folder, SPEC)
    rewrite(
        folder / "tp1" / "dense.csv", lambda rows: [rows[0], *[[o, t, str(2 * float(us) + 1)] for o, t, us in rows[1:]]]
    )
    second = step_time(folder)
    assert second.ramp(BATCH, 0).first_s > first.ramp(BATCH, 0).first_s
    assert second.source.digest != first.source.digest


def test_ragged_sweeps_are_joined(tmp_path: Path) -> None:
    """Two sweeps of different steps in one file leave holes; on a linear device filling them changes nothing."""
    folder = write_llmservingsim(tmp_path / "x")
    whole = step_time(folder).ramp(BATCH, 0)

    def sparse(rows: list[list[str]]) -> list[list[str]]:
        coarse = {"0", "16", "64", "128", "8"}
        return [rows[0], *(r for r in rows[1:] if r[0] != "16" or {r[1], r[3]} <= coarse)]

    rewrite(folder / "tp1" / "attention.csv", sparse)
    joined = step_time(folder).ramp(BATCH, 0)
    assert joined.first_s == pytest.approx(whole.first_s, rel=1e-9)
    assert not joined.extrapolated


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "tp1" / name).unlink()


def _dropping(name: str, column: int, value: str) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder / "tp1" / name, lambda rows: [row for row in rows if row[column] != value])


def _setting(name: str, line: int, column: int, value: str) -> Callable[[Path], None]:
    def change(rows: list[list[str]]) -> list[list[str]]:
        rows[line - 1][column] = value
        return rows

    return lambda folder: rewrite(folder / "tp1" / name, change)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without("per_sequence.csv"), r"/tp1: must hold dense.csv, attention.csv, per_sequence.csv \(got no per_seq"),
        (_dropping("dense.csv", 0, "o_proj"), r"dense.csv: must have the operators o_proj \(got "),
        (_dropping("attention.csv", 2, "0"), r"attention.csv: must hold prefills \(got none\)"),
        (_dropping("attention.csv", 0, "0"), r"attention.csv: must hold decodes \(got none\)"),
        (
            _setting("attention.csv", 5, 4, "soon"),
            r"attention.csv: line 5: time_us: must be a number ≥ 0 \(got 'soon'\)",
        ),
        (_setting("attention.csv", 5, 4, "-1"), r"attention.csv: line 5: time_us: must be a number ≥ 0 \(got '-1.0'\)"),
        (_setting("attention.csv", 5, 4, "inf"), r"attention.csv: line 5: time_us: must be a number ≥ 0 \(got 'inf'\)"),
        (_setting("attention.csv", 5, 4, "0"), r"attention.csv: time_us: must be > 0 \(got 0 for prefill_chunk 0, "),
        (_setting("dense.csv", 1, 2, "ms"), r"dense.csv: must have the columns time_us \(got layer, tokens, ms\)"),
        (lambda folder: (folder / "meta.yaml").write_text("a: [b"), r"meta.yaml: is not YAML \("),
        (lambda folder: (folder / "meta.yaml").write_text("- a"), r"meta.yaml: must hold a mapping \(got list\)"),
        (lambda folder: (folder / "tp1" / "dense.csv").write_bytes(b"\x1f\x8bnot"), r"dense.csv: is not text in UTF-8"),
    ],
)
def test_spoiled_tables_are_named(tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    """One sentence: the file, the line where there is one, the rule and the value."""
    folder = write_llmservingsim(tmp_path / "x")
    spoil(folder)
    with pytest.raises(ProfileError, match=message) as caught:
        load_operators(folder, SPEC)
    assert "\n" not in str(caught.value)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    """No folder, a file, an empty folder, half of Vidur's tables, and another degree than was measured."""
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    half = write_vidur(tmp_path / "half")
    (half / "attention.csv").unlink()
    vidur = write_vidur(tmp_path / "vidur")
    fused = write_llmservingsim(tmp_path / "fused")
    for folder, degree, message in (
        (tmp_path / "nowhere", 1, r"nowhere: must be a folder of operator tables \(got nothing\)"),
        (tmp_path / "file", 1, r"file: must be a folder of operator tables \(got a file\)"),
        (tmp_path / "empty", 1, r"empty: must hold operator tables: .*LLMServingSim.*Vidur\) \(got neither\)"),
        (half, 2, r"half: must hold mlp.csv and attention.csv"),
        (vidur, 4, r"mlp.csv: num_tensor_parallel_workers: must be 4 as step_time.tensor_parallel says \(got 2, 8\)"),
        (vidur, 8, r"attention.csv: num_tensor_parallel_workers: must be 8 as step_time.tensor_parallel says"),
        (fused, 2, r"fused: must hold tables of tp2 as step_time.tensor_parallel says \(got tp1\)"),
        (fused / "tp1", 2, r"tp1: must hold tables of tp2 as step_time.tensor_parallel says \(got tp1\)"),
    ):
        with pytest.raises(ProfileError, match=message):
            load_operators(folder, SPEC, degree)


def test_tables_of_another_model_are_refused(tmp_path: Path) -> None:
    """The model that meta.yaml names, its overrides (whole, or one device's share of a degree that was measured), and
    the dimensions among Vidur's columns must be the scenario's model's."""
    other = load_model_spec("25m")
    fused, vidur = write_llmservingsim(tmp_path / "a"), write_vidur(tmp_path / "b")
    with pytest.raises(ProfileError, match=r"meta.yaml: num_layers: must be the 8 of 25m \(got 2\)"):
        load_operators(fused, other)
    with pytest.raises(ProfileError, match=r"mlp.csv: num_attention_heads: must be the 8 of 25m \(got 2\)"):
        load_operators(vidur, other, 2)
    half = {
        "tp_degrees": [1, 2],
        "engine_effective": {"hf_overrides": {"num_attention_heads": 1, "num_hidden_layers": 1}},
    }
    load_operators(write_llmservingsim(tmp_path / "c", meta=half), SPEC)
    unnamed = {**half, "model": "somebody/else", "tp_degrees": [1]}
    with pytest.raises(ProfileError, match=r"meta.yaml: num_attention_heads: must be the 2 of tiny \(got 1\)"):
        load_operators(write_llmservingsim(tmp_path / "d", meta=unnamed), SPEC)


def test_a_scenario_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the scenario file; with ``--set`` to the working directory, also without a slash; the overhead and
    the degree come with it, and the cache is counted in the tables' own type."""
    write_llmservingsim(tmp_path / "tables", Device(launch_us=50.0))
    write_llmservingsim(tmp_path / "here" / "tables")
    data = small(model="tiny", step_time={"operators": "tables", "host_overhead_s": 0.001})
    times = []
    for overrides in ((), ("step_time.operators=tables",)):
        monkeypatch.chdir(tmp_path / "here")
        scenario = parse_scenario(data, "s.yaml", tmp_path, overrides)
        times.append(assemble.assemble(scenario).step_time.ramp(Batch((), 1, 8), 0).first_s)
    assert times[0] - times[1] == pytest.approx(SPEC.num_layers * (50.0 - DEVICE.launch_us) * 1e-6, rel=1e-9)
    assert times[1] > 0.001
    with pytest.raises(InputError, match=r"missing: must be a folder of operator tables \(got nothing\)"):
        assemble.assemble(parse_scenario(small(model="tiny", step_time={"operators": "missing"}), "s.yaml", tmp_path))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"operators": ""}, "step_time.operators: "),
        ({"operators": "x", "tensor_parallel": 0}, r"step_time.tensor_parallel: must be ≥ 1 \(got 0\)"),
        ({"operators": "x", "host_overhead_s": -0.1}, r"step_time.host_overhead_s: must be ≥ 0.0 \(got -0.1\)"),
        ({"operators": "x", "host_overhead_s": float("inf")}, "step_time.host_overhead_s: "),
        ({"operators": "x", "dtype": "bf16"}, "step_time: 'dtype' belongs to "),
    ],
)
def test_the_section_is_strict(config: dict[str, object], message: str) -> None:
    """A wrong value or a key of another kind is refused in one sentence."""
    with pytest.raises(InputError, match=message):
        parse_scenario(small(step_time=config), "s.yaml")
