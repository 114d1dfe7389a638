"""From a name to a model: built-in names, folders with and without weights."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.model import find_model, with_kv_heads
from simserve.model_spec import load_model_spec


def model_folder(path: Path, *files: str) -> Path:
    """A folder with the tiny model's configuration and such files."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(load_model_spec("tiny").to_hf_config()), encoding="utf-8")
    for file in files:
        (path / file).touch()
    return path


@pytest.mark.parametrize("name", ["mine", "./mine", "mine/", "../here/mine"])
@pytest.mark.parametrize("file", ["model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin"])
def test_weights_of_a_folder_are_used_however_it_is_written(tmp_path, monkeypatch, name, file):
    """A bare lower-case name too: weights that are there are never passed over for random ones in silence."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    model_folder(Path("mine"), file)
    source = find_model(name)
    assert source.has_weights and source.origin is not None and Path(source.origin).samefile("mine")


def test_a_folder_without_weights_is_its_configuration(tmp_path, monkeypatch):
    """Random weights of that shape."""
    monkeypatch.chdir(tmp_path)
    model_folder(Path("mine"), "notes.txt")
    source = find_model("mine")
    assert not source.has_weights and source.spec == load_model_spec("mine")


def test_a_folder_called_like_a_built_in_model_hides_nothing(tmp_path, monkeypatch):
    """The name is the built-in model's; a path with a slash is the folder's."""
    monkeypatch.chdir(tmp_path)
    model_folder(Path("25m"), "model.safetensors")
    assert (find_model("25m").origin, find_model("25m").has_weights) == (None, False)
    assert find_model("./25m").has_weights


def test_other_heads_have_no_trained_weights(tmp_path):
    """Those that were trained have the heads that they have."""
    source = find_model(str(model_folder(tmp_path / "mine", "model.safetensors")))
    assert with_kv_heads(source, source.spec.num_kv_heads).has_weights
    assert not with_kv_heads(source, 2).has_weights
