"""``engine.speculation``: what may be written, and one sentence for what may not."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.scenario import parse_scenario

PLAIN = {
    "name": "drafts",
    "model": "llama-3.1-8b",
    "step_time": {"roofline": "h100-sxm"},
    "workload": {
        "num_requests": 8,
        "arrivals": {"process": "all_at_once"},
        "prompt_tokens": {"fixed": 10},
        "output_tokens": {"fixed": 10},
    },
    "engine": {
        "policy": "continuous",
        "max_num_seqs": 8,
        "kv_cache": {"allocator": "paged", "num_blocks": 100},
        "speculation": {"draft_tokens": 4, "acceptance": 0.8, "draft": {"cost": 0.1}},
    },
}
WANTED = "must be a probability from 0 to 1, a list of one per draft, or {measured: FILE}"
SPECULATION = "engine.speculation"
DRAFT = f"{SPECULATION}.draft"


def read(**overrides):
    """The scenario with dotted keys (``__`` for a dot) set."""
    return parse_scenario(copy.deepcopy(PLAIN), overrides=[f"{k.replace('__', '.')}={v}" for k, v in overrides.items()])


def refusal(**overrides) -> str:
    with pytest.raises(ScenarioError) as raised:
        read(**overrides)
    return str(raised.value).removeprefix("scenario: ")


def test_without_it_engines_decode_one_token_at_a_time():
    """It is off by default, and a variant turns it off with null."""
    plain = copy.deepcopy(PLAIN)
    del plain["engine"]["speculation"]
    assert parse_scenario(plain).engine.speculation is None
    assert read(engine__speculation="null").engine.speculation is None


@pytest.mark.parametrize("acceptance", ["0", "1", "0.8", "[0.9, 0.8, 0.7, 0.6]", "{measured: agreement.json}"])
@pytest.mark.parametrize("draft", ["{cost: 0.1}", "{profile: NAME}", "{roofline: h100-sxm, model: qwen2.5-0.5b}"])
@pytest.mark.parametrize("policy", ["continuous", "chunked"])
def test_every_way_of_writing_it(acceptance, draft, policy):
    """Three kinds of acceptance, three of draft, two policies."""
    scenario = read(engine__speculation__acceptance=acceptance, engine__speculation__draft=draft, engine__policy=policy)
    assert scenario.engine.speculation is not None
    assert scenario.engine.speculation.draft_tokens == 4


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("acceptance", "1.2", f"{SPECULATION}.acceptance: {WANTED} (got 1.2)"),
        ("acceptance", "true", f"{SPECULATION}.acceptance: {WANTED} (got true)"),
        ("acceptance", "likely", f"{SPECULATION}.acceptance: {WANTED} (got 'likely')"),
        ("acceptance", "{measure: x}", f"{SPECULATION}.acceptance: {WANTED} (got measure in the mapping)"),
        ("acceptance", "[0.9, 2, 1, 1]", f"{SPECULATION}.acceptance: {WANTED} (got '2' in the list)"),
        (
            "acceptance",
            "[0.9, 0.8]",
            f"{SPECULATION}: acceptance must have as many numbers as draft_tokens (got 2 and 4)",
        ),
        ("draft", "{cost: -1}", f"{SPECULATION}.draft.cost: must be ≥ 0.0 (got -1)"),
        (
            "draft",
            "{}",
            f"{SPECULATION}.draft: must have exactly one of cost, profile, roofline (got an empty mapping)",
        ),
        ("draft", "0.1", f"{SPECULATION}.draft: must be a mapping (got 0.1)"),
        ("draft_tokens", "0", f"{SPECULATION}.draft_tokens: must be ≥ 1 (got 0)"),
        ("draft_tokens", "65", f"{SPECULATION}.draft_tokens: must be ≤ 64 (got 65)"),
        ("draft_token", "4", f"{SPECULATION}: unknown key 'draft_token' (did you mean 'draft_tokens'?)"),
    ],
)
def test_wrong_values_in_one_sentence(key, value, message):
    """Where it stands, the rule, and what was written."""
    assert refusal(**{f"engine__speculation__{key}": value}) == message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"engine__policy": "static"}, "speculation works with policy: continuous or chunked only (got static)"),
        (
            {"engine__policy": "transformers"},
            "speculation works with policy: continuous or chunked only (got transformers)",
        ),
        (
            {"engine__policy": "chunked", "engine__async_scheduling": "true"},
            "speculation works without async_scheduling only (got true)",
        ),
        (
            {
                "engine__kv_cache": "{allocator: paged, num_blocks: 9, preemption: swap, "
                "swap: {space: 1GiB, bandwidth_bytes_per_s: 9}}"
            },
            "speculation works with kv_cache.preemption: recompute only (got swap)",
        ),
        (
            {"engine__max_num_batched_tokens": 39},
            "max_num_batched_tokens must be ≥ max_num_seqs × (1 + speculation.draft_tokens) = 40, or a full batch "
            "could not verify its drafts in one step (got 39); lower max_num_seqs or draft_tokens",
        ),
    ],
)
def test_engines_it_does_not_go_with(overrides, message):
    """Rows that must advance alike, a decision made beforehand, a moved cache, a budget too small for a full batch."""
    assert refusal(**overrides) == f"engine: {message}"


@given(st.integers(1, 64), st.integers(1, 300), st.integers(1, 4000))
def test_a_full_batch_must_be_able_to_verify(num_drafts, max_num_seqs, budget):
    """A scenario is read if and only if max_num_seqs × (γ + 1) fits the budget of a step."""
    data = copy.deepcopy(PLAIN)
    data["engine"] |= {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": budget}
    data["engine"]["speculation"]["draft_tokens"] = num_drafts
    if max_num_seqs * (1 + num_drafts) <= budget:
        parse_scenario(data)
    else:
        with pytest.raises(ScenarioError, match="max_num_batched_tokens must be"):
            parse_scenario(data)
