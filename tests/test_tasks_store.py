"""Results on disk: kept at once, found again, a torn line forgiven, and nobody else's file touched."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import OutputError
from simserve.tasks.folder import study_folder
from simserve.tasks.store import PointStore

KIND = "simserve sweep"
FILES = ("sweep.json", "manifest.json", "runs")
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(), st.dictionaries(st.text(), json_values, max_size=3), max_size=6))
def test_what_is_read_back_is_what_was_put(tmp_path_factory, results):
    """Every JSON value survives to the bit, in the run that put it and in the next."""
    path = tmp_path_factory.mktemp("store") / "points.jsonl"
    with PointStore(path) as store:
        for key, result in results.items():
            store.put(key, result)
        assert {key: store.get(key) for key in results} == results
    with PointStore(path) as store:
        assert {key: store.get(key) for key in results} == results
        assert len(store) == len(results)
        assert "no such key" not in store


def _filled(path, num=3):
    with PointStore(path) as store:
        for i in range(num):
            store.put(f"k{i}", {"value": i})


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 400))
def test_a_file_cut_anywhere_loses_at_most_its_last_line(tmp_path_factory, cut):
    """A crash leaves a prefix of the file. Whatever its length, whole lines are read, and what is put afterwards is
    found by the next reader."""
    path = tmp_path_factory.mktemp("store") / "points.jsonl"
    _filled(path)
    content = path.read_bytes()[:cut]
    path.write_bytes(content)
    num_whole = max(0, content.count(b"\n") - 1)
    with PointStore(path) as store:
        assert len(store) == num_whole
        store.put("after", {"value": 9})
    with PointStore(path) as store:
        assert len(store) == num_whole + 1
        assert store.get("after") == {"value": 9}


def test_rubbish_in_the_middle_costs_its_own_line_alone(tmp_path):
    """A disk that lost a block: the lines around it are kept."""
    path = tmp_path / "points.jsonl"
    _filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\x00\xff{]\n", b"[1]\n", *lines[3:]]))
    with PointStore(path) as store:
        assert ["k0" in store, "k1" in store, "k2" in store] == [True, False, True]


@pytest.mark.parametrize("result", ["{}", '{"value": 2}', '{"value": 1, "more": 0}', "[]", "null", '{"value": 1.0}'])
def test_a_result_that_is_not_what_was_put_counts_as_not_there(tmp_path, result):
    """Half of a result, in a line that is JSON all the same: simulated again, as a torn line is."""
    path = tmp_path / "points.jsonl"
    with PointStore(path) as store:
        store.put("a", {"value": 1})
    whole = path.read_text()
    assert '"result":{"value":1}' in whole
    path.write_text(whole.replace('{"value":1}', result))
    with PointStore(path) as store:
        assert len(store) == 0
        store.put("a", {"value": 1})
    with PointStore(path) as store:
        assert store.get("a") == {"value": 1}


def test_each_result_is_on_disk_when_put_returns(tmp_path):
    """Another reader sees it before the store is closed."""
    path = tmp_path / "points.jsonl"
    with PointStore(path) as store:
        store.put("a", {"value": 1})
        line = json.loads(path.read_text().splitlines()[-1])
        assert (line["key"], line["result"]) == ("a", {"value": 1})


def test_nan_is_refused_and_nothing_is_written(tmp_path):
    """A result that other readers could not parse is a defect of whoever put it."""
    path = tmp_path / "points.jsonl"
    with PointStore(path) as store:
        before = path.read_bytes()
        with pytest.raises(ValueError, match="JSON"):
            store.put("a", {"value": float("nan")})
        assert path.read_bytes() == before
        assert "a" not in store


@pytest.mark.parametrize("content", [b"my notes\n", b"my notes", b'{"kind": "other"}\n'])
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    """Not a byte of it changes."""
    path = tmp_path / "points.jsonl"
    path.write_bytes(content)
    with pytest.raises(OutputError, match="holds something else than results"), PointStore(path):
        pass
    assert path.read_bytes() == content


def test_two_at_once_are_refused(tmp_path):
    """The second is told so, and the first goes on."""
    path = tmp_path / "points.jsonl"
    with PointStore(path) as store:
        with pytest.raises(OutputError, match="another simserve is writing it"), PointStore(path):
            pass
        store.put("a", {})
    _filled(path)


def test_a_folder_keeps_results_and_writes_the_rest_whole(tmp_path):
    """write() gives a file its name when it is complete; a writer that fails leaves the earlier one as it was."""
    with study_folder(tmp_path / "a" / "b", KIND, FILES) as folder:
        folder.store.put("a", {})
        folder.write("sweep.json", lambda path: path.write_text("first"))

        def fails(path):
            path.write_text("half")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            folder.write("sweep.json", fails)
    assert (tmp_path / "a" / "b" / "sweep.json").read_text() == "first"
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["points.jsonl", "sweep.json"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), None])
def test_what_cannot_be_written_is_called_by_its_own_name(tmp_path, error):
    """The user knows sweep.html, not the hidden file that was to become it; whoever words the sentence."""

    def fails(path):
        raise error or OutputError(f"{path}: cannot be written (no space left on device)")

    with study_folder(tmp_path, KIND, FILES) as folder, pytest.raises(OutputError) as caught:
        folder.write("sweep.html", fails)
    assert str(caught.value).startswith(f"{tmp_path / 'sweep.html'}: cannot be written (no space left on device)")
    assert ".partial" not in str(caught.value)


def test_a_folder_of_another_scenario_is_refused(tmp_path):
    """The points of two scenarios in one folder would be taken for one's; that of the same name goes on."""
    with study_folder(tmp_path, KIND, FILES, "chat") as folder:
        folder.store.put("a", {})
        folder.write("manifest.json", lambda path: path.write_text(json.dumps({"kind": KIND, "scenario": "chat"})))
    said = r"hold a sweep of scenario code \(it has one of chat\); choose another --out"
    with pytest.raises(OutputError, match=said), study_folder(tmp_path, KIND, FILES, "code"):
        pass
    for name in ("chat", None):
        with study_folder(tmp_path, KIND, FILES, name) as folder:
            assert "a" in folder.store


def test_a_folder_that_was_made_for_nothing_is_taken_back(tmp_path):
    """An error before any result leaves no trace, not even the parents; with a result, all is kept."""
    with pytest.raises(RuntimeError), study_folder(tmp_path / "a" / "b", KIND, FILES):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError), study_folder(tmp_path / "a" / "b", KIND, FILES) as folder:
        folder.store.put("a", {})
        raise RuntimeError
    with study_folder(tmp_path / "a" / "b", KIND, FILES) as folder:
        assert "a" in folder.store


def test_what_a_killed_study_was_writing_is_removed(tmp_path):
    """Hidden partial files go when the folder is next opened."""
    with study_folder(tmp_path / "a", KIND, FILES) as folder:
        folder.store.put("a", {})
    (tmp_path / "a" / ".sweep.json.0123abcd.partial").write_text("half")
    with study_folder(tmp_path / "a", KIND, FILES):
        assert os.listdir(tmp_path / "a") == ["points.jsonl"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"notes.txt": "mine"}, "notes.txt"),
        ({"points.jsonl": "", "notes.txt": "mine"}, "notes.txt"),
        ({"sweep.json": "{}"}, "sweep.json and no points.jsonl"),
        ({"points.jsonl": "", "manifest.json": '{"kind": "simserve knee"}'}, "the manifest of something else"),
        ({"points.jsonl": "", "manifest.json": "[]"}, "the manifest of something else"),
    ],
)
def test_a_folder_of_something_else_is_refused(tmp_path, names, found):
    """What a sweep did not write stays, and the sentence says what was found."""
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(OutputError) as caught, study_folder(tmp_path, KIND, FILES):
        pass
    assert f"must be empty or an earlier sweep's folder (it has {found}); choose another --out" in str(caught.value)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == names


def test_a_file_and_an_unwritable_place_are_refused(tmp_path):
    """A file where the folder should be; a parent that is a file."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="must be a folder"), study_folder(tmp_path / "file", KIND, FILES):
        pass
    with pytest.raises(OutputError, match="choose another --out"), study_folder(tmp_path / "file" / "x", KIND, FILES):
        pass
    assert (tmp_path / "file").read_text() == "mine"
