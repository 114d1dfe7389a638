"""Run folders: whole ones are read as they are; torn, foreign and old ones are refused in one sentence."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.compare.differences import dotted_differences, run_differences
from simserve.compare.pairing import Pairing, pair_variants
from simserve.compare.read import Run, load_run
from simserve.compare.requests import read_requests
from simserve.errors import InputError, RunError
from tests.compare_builders import SCENARIO, requests_frame, write_run

FRAME = requests_frame(np.linspace(0.1, 2.0, 40))


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run", {"one": FRAME, "two": FRAME.assign(ttft_s=3.0)})


def edited(folder, name, change):
    """Change a JSON file of a run folder in place."""
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_text(json.dumps(document))


def test_a_whole_run_is_read_as_it_is(folder):
    """Variants in order, each with its own rows, sorted by arrival; statuses counted."""
    run = load_run(folder)
    assert run.variants == ["one", "two"] and run.name == "run"
    assert np.array_equal(read_requests(run, "one").columns["ttft_s"], FRAME.ttft_s)
    requests = read_requests(run, "two")
    assert (requests.columns["ttft_s"] == 3.0).all() and requests.finished.all()
    assert requests.statuses == {"finished": 40, "rejected": 0, "cancelled": 0, "timed_out": 0}


def test_rows_come_in_order_of_arrival(tmp_path):
    """Whatever their order in the file, as the clients of a closed loop leave it; equal times by id."""
    shuffled = FRAME.assign(arrival_s=np.round(FRAME.arrival_s)).sample(frac=1, random_state=1)
    requests = read_requests(load_run(write_run(tmp_path / "run", {"one": shuffled})), "one")
    expected = shuffled.sort_values(["arrival_s", "request_id"])
    assert np.array_equal(requests.columns["ttft_s"], expected.ttft_s)


def test_columns_and_statuses_of_newer_runs_are_welcome(tmp_path):
    """More columns do no harm, and a status that older runs did not know is counted under its name."""
    status = ["backing_off"] * 3 + ["cancelled"] * 2 + ["finished"] * 35
    frame = requests_frame(FRAME.ttft_s, status=status).assign(num_attempts=1, away_s=0.0)
    requests = read_requests(load_run(write_run(tmp_path / "run", {"one": frame})), "one")
    assert requests.statuses == {"finished": 35, "rejected": 0, "cancelled": 2, "timed_out": 0, "backing_off": 3}
    assert np.isnan(requests.columns["ttft_s"][:5]).all()


def no_file(name):
    return lambda folder: (folder / name).unlink()


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def value(name, key, content):
    return lambda folder: edited(folder, name, lambda document: document.update({key: content}))


def without_column(folder):
    pd.read_parquet(folder / "requests.parquet").drop(columns="ttft_s").to_parquet(folder / "requests.parquet")


def half_the_rows(folder):
    pd.read_parquet(folder / "requests.parquet").iloc[::2].to_parquet(folder / "requests.parquet")


def cut_short(folder):
    path = folder / "requests.parquet"
    path.write_bytes(path.read_bytes()[:200])


BAD = {
    "nothing there": (shutil.rmtree, r"run: must be a run's folder \(there is no such folder\)"),
    "no manifest": (no_file("manifest.json"), r"manifest\.json: must be there"),
    "no summary": (no_file("summary.json"), r"summary\.json: must be there"),
    "no requests": (no_file("requests.parquet"), r"requests\.parquet: must be there"),
    "torn JSON": (text("summary.json", '{"schema_version": 1, '), r"summary\.json: must be JSON"),
    "no text": (
        lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe\x00"),
        r"manifest\.json: must be JSON",
    ),
    "a list": (text("manifest.json", "[]"), r"manifest\.json: must hold a JSON object \(got list\)"),
    "a sweep": (
        value("manifest.json", "kind", "simserve sweep"),
        r"kind: must be 'simserve run' \(got 'simserve sweep'",
    ),
    "a web app": (text("manifest.json", '{"name": "app"}'), r"kind: must be 'simserve run' \(got None\)"),
    "newer manifest": (value("manifest.json", "schema_version", 2), r"schema_version: must be 1 \(got 2\)"),
    "newer summary": (value("summary.json", "schema_version", "1"), r"schema_version: must be 1 \(got '1'\)"),
    "no variants": (value("summary.json", "variants", {}), r"variants: must be an object of at least one"),
    "odd variants": (value("manifest.json", "variants", ["one"]), r"variants: must be an object of at least one"),
    "mixed files": (value("summary.json", "variants", {"three": {}}), r"must name the same variants"),
    "torn requests": (cut_short, r"requests\.parquet: cannot be read"),
    "no parquet": (text("requests.parquet", "a,b\n1,2\n"), r"requests\.parquet: cannot be read"),
    "a column less": (without_column, r"requests\.parquet: must have a column 'ttft_s'"),
    "rows missing": (half_the_rows, r"requests\.parquet: must have 40 rows of 'one' \(got 20\)"),
}


@pytest.mark.parametrize("spoil, expected", BAD.values(), ids=BAD)
def test_what_is_no_whole_run_is_refused_in_one_sentence(folder, spoil, expected):
    """Where, the rule, what was found and what to do; never a traceback of a library."""
    spoil(folder)
    with pytest.raises(RunError, match=expected) as caught:
        read_requests(load_run(folder), "one")
    message = str(caught.value)
    assert issubclass(RunError, InputError) and "\n" not in message and message.startswith(str(folder))
    assert "; " in message


def test_a_file_is_no_folder(tmp_path):
    """Nor is a scenario a run."""
    (tmp_path / "toy.yaml").write_text("name: toy")
    with pytest.raises(RunError, match=r"must be a run's folder \(it is a file\)"):
        load_run(tmp_path / "toy.yaml")


def run_with(*names):
    return Run("/tmp/" + "-".join(names), {"variants": {name: {} for name in names}}, {})


names = st.lists(st.text("abcd", min_size=1, max_size=2), min_size=1, max_size=5, unique=True)


@given(names, names)
def test_pairing_laws(first, second):
    """Everyone is in exactly one pair or alone; only namesakes pair, unless both runs have one variant; swapping the
    runs swaps the pairs; where nothing pairs, the message names the options that choose."""
    a, b = run_with(*first), run_with(*second)
    if not set(first) & set(second) and not len(first) == len(second) == 1:
        with pytest.raises(RunError, match="choose with --variant-a and --variant-b"):
            pair_variants(a, b)
        return
    found = pair_variants(a, b)
    assert sorted([one for one, _ in found.pairs] + list(found.alone_a)) == sorted(first)
    assert sorted([two for _, two in found.pairs] + list(found.alone_b)) == sorted(second)
    assert len(first) == len(second) == 1 or all(one == two for one, two in found.pairs)
    swapped = pair_variants(b, a)
    assert {(one, two) for two, one in swapped.pairs} == set(found.pairs)
    assert (swapped.alone_b, swapped.alone_a) == (found.alone_a, found.alone_b)


@pytest.mark.parametrize(
    ("chosen", "pair"),
    [
        (("x", "y"), ("x", "y")),
        (("x", None), ("x", "x")),
        ((None, "y"), ("y", "y")),
    ],
)
def test_a_chosen_variant_meets_the_other_or_its_namesake(chosen, pair):
    """Both chosen: those two. One chosen: its namesake."""
    a, b = run_with("x", "y"), run_with("x", "y")
    assert pair_variants(a, b, *chosen).pairs == (pair,)


def test_a_chosen_variant_meets_the_only_one():
    """Without a namesake, the other run's only variant; the rest stays alone."""
    found = pair_variants(run_with("x", "y"), run_with("z"), "x")
    assert found == Pairing((("x", "z"),), ("y",), ())
    with pytest.raises(RunError, match=r"--variant-b: must say which variant meets 'x' \(it has z, w\)"):
        pair_variants(run_with("x", "y"), run_with("z", "w"), "x")


def test_a_chosen_variant_must_exist():
    """A near miss is guessed; else what there is gets listed."""
    a, b = run_with("static-paged", "static"), run_with("static")
    with pytest.raises(
        RunError, match=r"--variant-a: must be a variant .* \(got 'static-pagd'\); did you mean 'static-p"
    ):
        pair_variants(a, b, "static-pagd", "static")
    with pytest.raises(RunError, match=r"--variant-b: .* \(got 'zzz'\); it has static"):
        pair_variants(a, b, "static", "zzz")


documents = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3)
    ),
)
mappings = st.dictionaries(st.text("abc", min_size=1, max_size=2), documents, max_size=4)


@given(mappings, mappings)
def test_differences_are_all_and_only_the_differences(a, b):
    """None between equals; swapped sides swap; what is named differs, and taking B's values for them gives B."""
    assert dotted_differences(a, a) == []
    found = dotted_differences(a, b)
    swapped = {one["key"]: one for one in dotted_differences(b, a)}
    assert {one["key"] for one in found} == set(swapped)
    for one in found:
        other = swapped[one["key"]]
        assert ("a" in one) == ("b" in other) and one.get("a") == other.get("b")
        assert json.dumps(one.get("a")) != json.dumps(one.get("b")) or ("a" in one) != ("b" in one)
    assert bool(found) == (json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True))


def test_what_differs_between_two_runs_comes_scenario_first(tmp_path):
    """Scenario keys, then step times, then versions; when and by which command is no difference; what one side lacks
    has no value there; a difference of one pair alone names it."""
    other = json.loads(json.dumps(SCENARIO))
    other["engine"].update(max_num_seqs=16, max_wait_s=None)
    a = load_run(write_run(tmp_path / "a", {"one": FRAME, "two": FRAME}))
    b = load_run(write_run(tmp_path / "other", {"one": FRAME, "two": FRAME}, other, simserve_version="0.2.0"))
    b.manifest["variants"]["two"] = json.loads(json.dumps(b.manifest["variants"]["two"]))
    b.manifest["variants"]["two"]["step_time"]["digest"] = "cd" * 32
    pairs = pair_variants(a, b).pairs
    assert run_differences(a, a, pairs) == []
    assert run_differences(a, b, pairs) == [
        {"key": "engine.max_num_seqs", "a": 8, "b": 16, "pair": None},
        {"key": "engine.max_wait_s", "b": None, "pair": None},
        {"key": "step_time_source.digest", "a": "ab" * 32, "b": "cd" * 32, "pair": 1},
        {"key": "simserve_version", "a": "0.1.0", "b": "0.2.0", "pair": None},
    ]


def test_messages_stay_on_one_line_with_many_variants():
    """Six names, then how many more."""
    with pytest.raises(RunError) as caught:
        pair_variants(run_with(*(f"a{i}" for i in range(50))), run_with(*(f"b{i}" for i in range(50))))
    assert re.search(r"b5 and 44 more", str(caught.value)) and len(str(caught.value)) < 600
