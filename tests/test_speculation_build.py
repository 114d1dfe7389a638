"""``engine.speculation`` of a scenario to what runs it: acceptance from numbers or a file, drafts of three kinds."""

import copy
import json

import pytest

from simserve.assemble import assemble
from simserve.errors import ProfileError, ScenarioError
from simserve.kv_cache.lookahead import LookaheadAllocator, LookaheadPrefixCachingAllocator
from simserve.request import Batch
from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from simserve.speculation.build import probabilities
from simserve.speculation.schedulers import SpeculativeChunkedScheduler, SpeculativeContinuousScheduler
from simserve.step_time.profile_schema import content_digest
from tests.test_scenario_speculation import PLAIN


def scenario(tmp_path=None, **overrides):
    """The scenario with dotted keys (``__`` for a dot) set; its folder is ``tmp_path``."""
    wanted = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
    where = {} if tmp_path is None else {"base_dir": tmp_path}
    return parse_scenario(copy.deepcopy(PLAIN), overrides=wanted, **where)


def probabilities_of(given):
    assert given.engine.speculation is not None
    return probabilities(given, given.engine.speculation)


def agreement(acceptance) -> dict:
    """What ``simserve agreement`` writes, of a draft that was accepted so."""
    estimate = {"value": 0.5, "low": 0.4, "high": 0.6}
    content = {
        "schema_version": 1,
        "kind": "simserve draft agreement",
        "name": "draft-for-target",
        "target": "target",
        "draft": "draft",
        "draft_tokens": len(acceptance),
        "acceptance": acceptance,
        "intervals": [estimate] * len(acceptance),
        "tried": [100] * len(acceptance),
        "accepted": [50] * len(acceptance),
        "agreement": estimate,
        "tokens_per_pass": estimate,
        "num_passes": 100,
        "num_answers": 4,
        "num_answer_tokens": 64,
        "draft_parameters": 1,
        "target_parameters": 2,
        "text": {"name": "text", "sha256": "0", "num_tokens": 1000},
        "seed": 0,
        "software": {"simserve": "0", "torch": "0", "transformers": "0", "command": "simserve agreement"},
    }
    return content | {"digest": content_digest(content)}


def test_acceptance_from_a_number_a_list_or_a_file(tmp_path):
    """One for all drafts, one each, or as many of the measured ones as there are drafts."""
    (tmp_path / "a.json").write_text(json.dumps(agreement([0.9, 0.8, 0.7, 0.6, 0.5])))
    assert probabilities_of(scenario()) == (0.8,) * 4
    assert probabilities_of(scenario(engine__speculation__acceptance="[0.9, 0.5, 0.2, 0.1]")) == (0.9, 0.5, 0.2, 0.1)
    data = copy.deepcopy(PLAIN)
    data["engine"]["speculation"]["acceptance"] = {"measured": "a.json"}
    assert probabilities_of(parse_scenario(data, base_dir=tmp_path)) == (0.9, 0.8, 0.7, 0.6)


def test_a_measured_file_that_is_missing_or_too_short(tmp_path):
    """One sentence each, before anything runs."""
    data = copy.deepcopy(PLAIN)
    data["engine"]["speculation"]["acceptance"] = {"measured": "a.json"}
    with pytest.raises(ProfileError, match=r"a\.json: cannot be read"):
        assemble(parse_scenario(data, base_dir=tmp_path))
    (tmp_path / "a.json").write_text(json.dumps(agreement([0.9, 0.8])))
    with pytest.raises(ScenarioError, match=r"must cover draft_tokens \(got 2 positions in a.json for 4\); lower"):
        assemble(parse_scenario(data, base_dir=tmp_path))


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ([], "must hold a JSON object (got list); run `simserve agreement`"),
        ({"acceptance": [0.9] * 4}, "kind: must be 'simserve draft agreement' (got nothing); run `simserve agreement`"),
        ({"kind": "simserve quantization"}, "kind: must be 'simserve draft agreement' (got 'simserve quantization')"),
        (agreement([0.9] * 4) | {"schema_version": 2}, "schema_version: must be 1 (got 2); run `simserve agreement`"),
        (agreement([0.9, 1.8, 0.1, 0.1]), "acceptance.1: Input should be less than or equal to 1"),
        (agreement([0.9, float("nan"), 0.1, 0.1]), "acceptance.1: Input should be a finite number"),
        (agreement([0.9] * 4) | {"acceptance": [1.0] * 4}, "digest: does not match the content"),
    ],
)
def test_a_file_that_is_no_agreement(tmp_path, content, rule):
    """What it is instead, in one sentence; figures that nobody measured are none."""
    data = copy.deepcopy(PLAIN)
    data["engine"]["speculation"]["acceptance"] = {"measured": "a.json"}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(ProfileError) as caught:
        assemble(parse_scenario(data, base_dir=tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / 'a.json'}: {rule}")


def test_policy_and_cache_that_speculate():
    """Continuous or chunked; a paged cache looks ahead, with and without prefix caching; a contiguous one is plain."""
    assert type(assemble(scenario()).scheduler) is SpeculativeContinuousScheduler
    chunked = assemble(scenario(engine__policy="chunked", engine__kv_cache__prefix_caching="true")).scheduler
    assert type(chunked) is SpeculativeChunkedScheduler
    assert type(chunked.pool.allocator) is LookaheadPrefixCachingAllocator
    assert type(assemble(scenario()).scheduler.pool.allocator) is LookaheadAllocator
    contiguous = assemble(scenario(engine__kv_cache="{allocator: contiguous, num_blocks: 100}"))
    assert not isinstance(contiguous.scheduler.pool.allocator, LookaheadAllocator)


PASS = Batch((), 8, 8 * 500, tokens_per_decode=5)


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        ("{cost: 0.25}", "4 drafts per pass, each assumed to take 0.25 of a step"),
        (
            "{profile: qwen2.5-0.5b-cpu-fp32}",
            "4 drafts per pass, whose steps are those of profile qwen2.5-0.5b-cpu-fp32",
        ),
        (
            "{roofline: h100-sxm, model: qwen2.5-0.5b}",
            "4 drafts per pass, of qwen2.5-0.5b, whose steps are estimated on h100-sxm",
        ),
    ],
)
def test_what_drafting_costs_is_said(draft, words):
    """A fraction of the target's step, a profile, a roofline: the note names it, and drafts take time."""
    free = assemble(scenario(engine__speculation__draft="{cost: 0}")).step_time
    made = assemble(scenario(engine__speculation__draft=draft)).step_time
    assert made.source.note.endswith(words)
    assert not made.source.calibrated
    assert made.ramp(PASS, 0).first_s > free.ramp(PASS, 0).first_s


def test_a_fraction_is_of_the_targets_own_decode_steps():
    """Four draft steps at a quarter each, contexts growing by one from step to step."""
    target = assemble(scenario(engine__speculation="null")).step_time
    free, dear = (
        assemble(scenario(engine__speculation__draft=f"{{cost: {cost}}}")).step_time.ramp(PASS, 0).first_s
        for cost in (0, 0.25)
    )
    plain = sum(target.ramp(Batch((), 8, 8 * (500 + j)), 0).first_s for j in range(4))
    assert dear - free == pytest.approx(0.25 * plain)


def test_what_measured_steps_leave_out_is_said():
    """A profile's steps have one row of the output head per sequence: Qwen2.5-0.5B's is 151,936 × 896 of 493.9 million
    weights, 28 %. A roofline counts every row."""
    profile = {"model": "qwen2.5-0.5b", "step_time": "{profile: qwen2.5-0.5b-cpu-fp32}"}
    measured = assemble(scenario(**profile)).step_time.source.note
    said = "; measured steps lack the drafts' rows of the output head, 28% of a token's products with weights"
    assert measured.endswith(said) and round(100 * 151_936 * 896 / 493.9e6) == 28
    assert "output head" not in assemble(scenario(step_time="{roofline: h100-sxm}")).step_time.source.note


def test_draws_of_a_calibration_draw_the_draft_too():
    """Another calibration of the draft's profile takes another time, the same one for the same number."""
    drafted = scenario(engine__speculation__draft="{profile: qwen2.5-0.5b-cpu-fp32}")
    times = [assemble(drafted, draw).step_time.ramp(PASS, 0).first_s for draw in (None, 1, 2, 1)]
    assert times[1] == times[3]
    assert len(set(times)) == 3


def test_variants_share_who_agrees():
    """Common random numbers: with a better draft, or another policy, nobody needs more passes (a roomy cache)."""
    data = copy.deepcopy(PLAIN)
    data["workload"] |= {"num_requests": 16, "output_tokens": {"fixed": 60}}
    data["engine"]["kv_cache"]["num_blocks"] = 1000
    data["variants"] = {
        "base": {},
        "chunked": {"engine": {"policy": "chunked"}},
        "better": {"engine": {"speculation": {"acceptance": 0.9}}},
        "longer": {"engine": {"speculation": {"draft_tokens": 5}}},
        "plain": {"engine": {"speculation": None}},
    }
    results = simulate(parse_scenario(data)).variants
    passes = {name: result.records.num_passes for name, result in results.items()}
    assert passes["chunked"] == passes["base"] > passes["better"] > 0
    assert passes["base"] > passes["longer"] > 0
    assert passes["plain"] == 0 and results["plain"].summary["speculation"] is None
    again = simulate(parse_scenario(data)).variants
    assert {name: result.summary for name, result in again.items()} == {
        name: result.summary for name, result in results.items()
    }


def test_another_seed_is_other_luck():
    """Seeds of replications change who agrees."""
    seeds = [copy.deepcopy(PLAIN) | {"seed": seed} for seed in range(4)]
    for data in seeds:
        data["workload"] |= {"output_tokens": {"fixed": 200}}
    passes = [
        result.records.num_passes for data in seeds for result in simulate(parse_scenario(data)).variants.values()
    ]
    assert len(set(passes)) > 1
