"""Profile files: what is written is what is read, and whatever was not measured so is refused in one sentence."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from simserve.assemble import assemble
from simserve.errors import ProfileError
from simserve.model_spec import load_model_spec
from simserve.scenario import Scenario
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import (
    PROFILES_DIR,
    content_digest,
    load_profile,
    parse_profile,
    shipped_profiles,
)
from tests.profile_builders import make_content, make_profile_text


def refusal(content: dict[str, Any]) -> str:
    """The sentence with which a file of this content is refused."""
    with pytest.raises(ProfileError) as caught:
        parse_profile(content, "p.json")
    message = str(caught.value)
    assert "\n" not in message and message.startswith("p.json: ")
    return message


def signed(content: dict[str, Any]) -> dict[str, Any]:
    """The content with the digest that a careful forger would compute."""
    return {**content, "digest": content_digest(content)}


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """Every sample, table and figure survives the trip through the file."""
    profile, text = make_profile_text()
    path = tmp_path / "mine.json"
    path.write_text(text)
    assert load_profile(path) == profile
    assert load_profile(str(path), load_model_spec("tiny")) == profile


def test_the_layout_of_the_file_does_not_matter(tmp_path: Path) -> None:
    """Reformatting by an editor or a version-control filter keeps a profile valid: the digest is of the content."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(make_content(), indent=7, sort_keys=True))
    assert load_profile(path) == make_profile_text()[0]


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for i, item in enumerate(value) for leaf in _leaves(item, (*path, i))]
    return [path]


_content = cache(make_content)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**6))
def test_changing_any_value_by_hand_is_refused(seed: int) -> None:
    """Whatever number, word or flag is edited, the file is refused: by its rule or by its digest."""
    content = deepcopy(_content())  # made once: it takes a third of a second
    *outer, last = random.Random(seed).choice(_leaves(content))
    place: Any = content
    for key in outer:
        place = place[key]
    old = place[last]
    place[last] = not old if isinstance(old, bool) else old * 2 + 1 if isinstance(old, int | float) else "edited"
    refusal(content)


@pytest.mark.parametrize("version", [0, 2, None, "1", 1.5])
def test_another_schema_version_is_refused(version: object) -> None:
    """An older or newer file says its version and the remedy."""
    message = refusal({**make_content(), "schema_version": version})
    assert repr(version) in message and "calibrate again" in message


def test_a_wrong_field_is_named() -> None:
    """Unknown, missing and impossible fields are said by their place, even under a right digest."""
    content = make_content()
    assert "nonsense" in refusal(signed({**content, "nonsense": 1}))
    assert "samples" in refusal(signed({key: value for key, value in content.items() if key != "samples"}))
    sample = {**content["samples"][0], "wall_s": -1.0}
    assert "samples.0.wall_s" in refusal(signed({**content, "samples": [sample]}))
    backwards = {"rows": content["prefill"]["rows"][::-1]}
    assert "prefill: rows must increase" in refusal(signed({**content, "prefill": backwards}))
    row = {"row": 1, "contexts": [5, 5], "seconds": [1.0, 1.0]}
    assert "contexts must increase" in refusal(signed({**content, "decode": {"rows": [row, row]}}))
    assert "formula says 3" in refusal(signed({**content, "kv_bytes_per_token": {"measured": 2, "formula": 3}}))
    nan = {**content["samples"][0], "wall_s": float("nan")}
    assert "samples.0.wall_s" in refusal(signed({**content, "samples": [nan]}))


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", "\x00\xff", make_profile_text()[1][:-40], "[" * 100_000, '{"a": 1}']
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    """Empty, truncated, nested beyond reason, or JSON of something else: one sentence that names the file."""
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert "broken.json: " in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_and_unknown_names_are_refused(tmp_path: Path) -> None:
    """A path that is not there, a folder, and a misspelt name, which gets a suggestion."""
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ProfileError, match="cannot be read"):
            load_profile(path)
    with pytest.raises(ProfileError, match="did you mean '25m-cpu-fp32'"):
        load_profile("25m-cpu-fp23")
    with pytest.raises(ProfileError, match=r"shipped are .*25m-cpu-fp32"):
        load_profile("zzzzzzzz")


def test_a_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    """The sentence names both models, a dimension that differs, and the command that would help."""
    path = tmp_path / "tiny.json"
    path.write_text(make_profile_text(model="tiny")[1])
    with pytest.raises(ProfileError, match=r"25m, num_layers 8 \(got tiny, num_layers 2\).*calibrate --model 25m"):
        load_profile(path, load_model_spec("25m"))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"dtype": "bf16"}, r"25m-cpu-fp32: dtype: must be measured with dtype bf16 \(got fp32\)"),
        ({"tensor_parallel": 2}, r"must be measured with tensor parallel 2 \(got 1\)"),
        ({"attention": "eager"}, r"must be measured with attention eager \(got sdpa\)"),
    ],
)
def test_a_scenario_can_require_what_a_profile_was_measured_with(wanted: dict[str, Any], words: str) -> None:
    """Another dtype, degree or kernel is refused in one sentence before anything runs; the right ones pass."""
    step_time = {"profile": "25m-cpu-fp32", "dtype": "fp32", "tensor_parallel": 1, "attention": "sdpa"}
    content = {
        "name": "s",
        "model": "25m",
        "workload": {
            "num_requests": 1,
            "arrivals": {"process": "all_at_once"},
            "prompt_tokens": {"fixed": 8},
            "output_tokens": {"fixed": 2},
        },
        "engine": {
            "policy": "continuous",
            "max_num_seqs": 1,
            "max_num_batched_tokens": 64,
            "max_model_len": 64,
            "kv_cache": {"allocator": "paged", "num_blocks": 16},
        },
    }
    assemble(Scenario.model_validate({**content, "step_time": step_time}))
    with pytest.raises(ProfileError, match=words):
        assemble(Scenario.model_validate({**content, "step_time": step_time | wanted}))


@pytest.mark.parametrize("name", [n for n in shipped_profiles() if load_profile(n).provenance.origin == "forward"])
class TestShipped:
    """Each profile in the package that was measured here, against its own raw samples."""

    def test_it_is_of_the_model_it_is_named_after(self, name: str) -> None:
        """``<model>-<device>-<dtype>``, and the bytes per token are that model's."""
        profile = load_profile(name)
        spec = load_model_spec(profile.provenance.model)
        load_profile(name, spec)
        assert name == profile.name == f"{spec.name}-{profile.provenance.device}-{profile.provenance.dtype}"
        assert profile.kv_bytes_per_token.measured == spec.kv_bytes_per_token(profile.provenance.dtype)

    def test_the_tables_are_the_medians_of_the_samples(self, name: str) -> None:
        """Recomputed here from the raw column of the clock that the provenance names, and made non-decreasing along
        context by another implementation."""
        profile = load_profile(name)
        column = {"process_cpu": "cpu_s", "wall": "wall_s", "cuda_events": "cuda_s"}[profile.provenance.clock]
        rows: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
        for point in ProfileStepTime(profile).source.points:
            shape = (point.phase, point.batch_size, point.num_new_tokens, point.num_context_tokens)
            mine = [
                s
                for s in profile.samples
                if s.shape == (*shape, 0, 0, 0.0) and not (s.held_out and s.session) and not s.anchor
            ]
            clean = [s for s in mine if not s.dirty] or mine
            assert len(mine) >= 2
            rows.setdefault(shape[:3], []).append((median(getattr(sample, column) for sample in clean), point.seconds))
        for cells in rows.values():
            medians, table = zip(*cells, strict=True)
            assert table == pytest.approx(isotonic_regression(medians).x, rel=1e-9)

    def test_samples_were_interleaved(self, name: str) -> None:
        """Consecutive samples are rarely of one point: slow drift cannot pass for the shape of the grid."""
        samples = load_profile(name).samples
        assert [s.order for s in samples] == list(range(len(samples)))
        same = sum(
            (a.phase, a.batch_size, a.num_new_tokens, a.num_context_tokens)
            == (b.phase, b.batch_size, b.num_new_tokens, b.num_context_tokens)
            for a, b in pairwise(samples)
        )
        assert same < len(samples) / 10

    def test_it_covers_batches_to_64_and_contexts_to_2048(self, name: str) -> None:
        """What the scenarios need without extrapolation, with points held out to say how wrong it is."""
        profile = load_profile(name)
        assert profile.validity.max_batch_size >= 64 and profile.validity.max_decode_context >= 2048
        assert profile.validity.min_decode_context <= 16
        assert profile.held_out.all.num_points >= 10 and profile.held_out.all.mean is not None

    def test_its_command_can_be_run_by_anyone(self, name: str) -> None:
        """The command that made it is in the file, and no path of the machine it ran on."""
        text = (PROFILES_DIR / f"{name}.json").read_text()
        command = load_profile(name).provenance.command
        assert command.startswith("simserve calibrate")
        assert "/home" not in text and "/root" not in text and " /" not in command
