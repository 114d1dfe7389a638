"""``kv_cache: none`` in a scenario: read, refused where it does not fit, run, and counted."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.errors import ScenarioError
from simserve.model_spec import load_model_spec
from simserve.report.content import page_content
from simserve.scenario import NoCacheConfig, parse_scenario, scenario_schema
from simserve.simulate import simulate
from simserve.timeline import timeline

PROMPT, ANSWER = 512, 256


def scenario(engine: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "x",
        "model": "qwen2.5-0.5b",
        "step_time": {"roofline": "h100-sxm"},
        "workload": {
            "num_requests": 1,
            "arrivals": {"process": "all_at_once"},
            "prompt_tokens": {"fixed": PROMPT},
            "output_tokens": {"fixed": ANSWER},
        },
        "engine": {"policy": "continuous", "kv_cache": "none", **(engine or {})},
    }
    return {**base, **changes}


@pytest.mark.parametrize("section", ["none", {"allocator": "none"}])
@pytest.mark.parametrize("policy", ["static", "continuous"])
def test_it_is_read_in_either_spelling(section: Any, policy: str) -> None:
    """``kv_cache: none`` is ``{allocator: none}``, under both policies that go without."""
    parsed = parse_scenario(scenario({"policy": policy, "kv_cache": section}))
    assert parsed.engine.kv_cache == NoCacheConfig(allocator="none")
    assert list(parsed.resolve_variants()) == [f"{policy}-none"]


@pytest.mark.parametrize("section", ["none", {"allocator": "none"}])
def test_a_variant_may_drop_the_cache_or_bring_one(section: Any) -> None:
    """What only a cache knows goes with it, and comes back whole."""
    paged = {"allocator": "paged", "num_blocks": 64, "watermark": 0.0, "dtype": "fp8"}
    variants = {"without": {"engine": {"kv_cache": section}}}
    found = parse_scenario(scenario({"kv_cache": paged}, variants=variants)).resolve_variants()
    assert isinstance(found["without"].engine.kv_cache, NoCacheConfig)
    variants = {"with": {"engine": {"kv_cache": paged}}}
    back = parse_scenario(scenario({"kv_cache": section}, variants=variants)).resolve_variants()["with"]
    assert back.engine.kv_cache.allocator == "paged"


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"policy": "chunked"}, "kv_cache: none works with policy: static or continuous only (got chunked"),
        ({"policy": "transformers"}, "policy: transformers needs kv_cache.allocator: paged (got none)"),
        ({"kv_cache": "nothing"}, "engine.kv_cache: must be a mapping, or none for an engine without a cache"),
        (
            {"kv_cache": {"allocator": "none", "num_blocks": 4}},
            "'num_blocks' belongs to allocator: paged or contiguous",
        ),
        ({"kv_cache": {"allocator": "non"}}, "did you mean 'none'?"),
        (
            {"speculation": {"draft_tokens": 2, "acceptance": 0.5, "draft": {"cost": 0.1}}},
            "speculation needs a KV cache",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(engine: dict[str, Any], words: str) -> None:
    """A policy that chunks, keys of a cache, a misspelling, drafts that would have to be rolled back."""
    with pytest.raises(ScenarioError) as error:
        parse_scenario(scenario(engine))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_request_that_no_step_holds_is_told_before_anything_runs() -> None:
    """512 + 256 − 1 tokens in one step of 700."""
    with pytest.raises(ScenarioError, match="767 tokens, computed in one step without a cache, exceed"):
        simulate(parse_scenario(scenario({"max_num_batched_tokens": 700})))


def test_editors_know_it() -> None:
    """The JSON schema has the word beside the three mappings."""
    engines = scenario_schema()["$defs"]
    found = engines["ContinuousEngineConfig"]["properties"]["kv_cache"]
    assert {"const": "none"} in found["anyOf"]


def macs_by_hand(prompt: int, answer: int, cached: bool) -> int:
    """Multiply-accumulates written out step by step: weights of the layers for each token, the head for the row that
    emits, 2 · width · keys per layer and token for scores and sum."""
    spec = load_model_spec("qwen2.5-0.5b")
    width = spec.num_attention_heads * spec.head_dim
    total = 0
    for step in range(answer):
        known = prompt + step
        first = known - 1 if cached and step else 0  # tokens before it are in the cache
        for position in range(first, known):
            total += spec.matmul_parameters + spec.num_layers * 2 * width * (position + 1)
        total += spec.vocab_size * spec.hidden_size
    return total


def test_the_chapters_comparison() -> None:
    """Tokens 163,712 against 767, and multiply-accumulates as counted by hand, with a cache and without."""
    variants = {"cached": {"engine": {"kv_cache": {"allocator": "paged", "num_blocks": 100}}}, "none": {}}
    result = simulate(parse_scenario(scenario(variants=variants)))
    cached, none = (result.variants[name].summary for name in ("cached", "none"))
    assert (cached["computed_tokens"], none["computed_tokens"]) == (767, 163_712)
    assert (cached["recomputed_tokens"], none["recomputed_tokens"]) == (0, 163_712 - 767)
    assert cached["model_macs"] == macs_by_hand(PROMPT, ANSWER, cached=True)
    assert none["model_macs"] == macs_by_hand(PROMPT, ANSWER, cached=False)
    assert none["kv_cache"]["capacity_tokens"] == none["kv_cache"]["peak_used"] == 0
    assert "prefills of whole sequences" in result.variants["none"].step_time.source.note
    assert "cache" not in result.variants["cached"].step_time.source.note


@pytest.mark.parametrize("cache", ["none", {"allocator": "paged", "num_blocks": 4096}])
def test_work_grows_with_the_square_or_the_cube(cache: Any) -> None:
    """From answers of 1,000 to 2,000 tokens after a short prompt, attention's work grows 4 times with a cache, 8 times
    without (model_macs less what its tokens and rows take of the weights)."""
    spec, attention = load_model_spec("qwen2.5-0.5b"), []
    for answer in (1000, 2000):
        changes = scenario({"kv_cache": cache, "max_num_batched_tokens": 4096})
        changes["workload"] |= {"prompt_tokens": {"fixed": 1}, "output_tokens": {"fixed": answer}}
        summary = next(iter(simulate(parse_scenario(changes)).variants.values())).summary
        weights = spec.matmul_flops(summary["computed_tokens"], answer) // 2
        attention.append(summary["model_macs"] - weights)
    assert attention[1] / attention[0] == pytest.approx(8 if cache == "none" else 4, rel=0.01)


def test_static_padding_is_counted_as_work() -> None:
    """Two rows, of which one is finished after its first token: both are computed to the end."""
    changes = scenario({"policy": "static", "max_num_seqs": 2})
    changes["workload"] |= {"num_requests": 2, "output_tokens": {"values": [1, 9]}, "prompt_tokens": {"fixed": 4}}
    summary = next(iter(simulate(parse_scenario(changes)).variants.values())).summary
    pushed = 2 * sum(range(4, 4 + 9))
    assert summary["computed_tokens"] + summary["padding_tokens"] == pushed
    assert summary["prompt_padding_share"] == pytest.approx(summary["padding_tokens"] / pushed)
    assert summary["model_macs"] == 2 * macs_by_hand(4, 9, cached=False)


def test_a_page_draws_the_cache_of_those_who_have_one() -> None:
    """Beside a variant with a cache only that one's is drawn; where nobody has one the section is left out. Over time
    all of its shares are 0, the free one too."""
    paged = {"engine": {"kv_cache": {"allocator": "paged", "num_blocks": 100}}}
    both = simulate(parse_scenario(scenario(variants={"cached": paged, "none": {}})))
    figures = {section.id: section.figures for section in page_content(both, {}).sections}
    assert [figure.title for figure in figures["cache"]] == ["Where the cache went", "cached"]
    alone = simulate(parse_scenario(scenario()))
    assert "cache" not in {section.id for section in page_content(alone, {}).sections}
    over_time = timeline(both.variants["none"].records)
    assert over_time["busy_share"].max() > 0
    assert not over_time.filter(like="kv_").to_numpy().any()


def test_it_runs_on_a_measured_profile_and_says_how() -> None:
    """Whole forwards of the profile, named in the note; ten tokens after a prompt of 256 take those of 256 to 265."""
    changes = scenario(step_time={"profile": "25m-cpu-fp32"}, model="25m")
    changes["workload"] |= {"prompt_tokens": {"fixed": 256}, "output_tokens": {"fixed": 10}}
    variant = next(iter(simulate(parse_scenario(changes)).variants.values()))
    assert "whole forwards measured at" in variant.step_time.source.note
    assert variant.summary["extrapolated_step_share"] == 0
    model_s = sum(_forward_s(variant.step_time, 256 + k) for k in range(10))
    assert variant.summary["makespan_s"] == pytest.approx(model_s, abs=1e-7)


def _forward_s(step_time: Any, num_tokens: int) -> float:
    from simserve.request import Batch, Chunk

    seconds: float = step_time.ramp(Batch((Chunk(num_tokens, 0),), recomputes=True), 0).first_s
    return seconds
