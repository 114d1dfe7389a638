"""Perplexity, agreement and their intervals: closed forms, scipy's, and models whose answers are known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from calibrate.model import ModelSource, build_model
from calibrate.quantize.greedy import answer, next_tokens, rows_at_once
from calibrate.quantize.intervals import bootstrap, wilson, wilson_of_groups
from calibrate.quantize.matrices import rounded
from calibrate.quantize.quality import Probe, Reading, change, compare, read
from simserve.memory.schemes import parse_scheme
from simserve.model_spec import load_model_spec


@pytest.fixture(scope="module")
def tiny():
    torch.set_num_threads(1)
    return build_model(ModelSource(load_model_spec("tiny"), None, False), "cpu", "fp32", "sdpa", 0)


def tokens(rows, width, seed=0):
    return torch.randint(0, 1_024, (rows, width), generator=torch.Generator().manual_seed(seed))


def probe_of(model):
    paths = answer(model, tokens(3, 8, 1), 6)
    return Probe(tokens(5, 12), paths, 8, next_tokens(model, paths, 8))


@given(true=st.integers(0, 200), more=st.integers(0, 200))
def test_wilson_is_scipy_s(true, more):
    """The same interval as scipy's, for any counts."""
    if true + more == 0:
        return
    found = wilson(true, true + more)
    theirs = stats.binomtest(true, true + more).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_the_chapters_agreement_has_an_interval():
    """142 of 144 greedy tokens: 95.1 % to 99.6 %; one question in sixteen wrong: 71.7 % to 98.9 %."""
    assert [round(x, 3) for x in (wilson(142, 144).low, wilson(142, 144).high)] == [0.951, 0.996]
    assert [round(x, 3) for x in (wilson(15, 16).low, wilson(15, 16).high)] == [0.717, 0.989]


def test_one_question_in_sixteen_is_no_effect():
    """Sixteen questions, one of which went the other way: drawn again, 36 % of all draws miss it, (15/16)^16, so that
    zero is in the interval. Eight that went the other way are an effect."""
    before = (1.0,) * 16
    assert change((0.0, *before[1:]), before).holds(0.0)
    assert not change((0.0,) * 8 + (1.0,) * 8, before).holds(0.0)


def test_tokens_that_are_wrong_together_count_once():
    """Answers all right or all wrong: n answers of 32 tokens say as much as n − 1 independent tokens would (the sample
    variance is n/(n − 1) times that of the share)."""
    found = wilson_of_groups([32] * 15 + [0] * 5, 32)
    alone = wilson(0.75 * 19, 19)
    assert (found.value, found.low, found.high) == pytest.approx((0.75, alone.low, alone.high))


def test_tokens_that_are_wrong_anywhere_count_each():
    """Every answer with the same share: no design effect."""
    found, alone = wilson_of_groups([24] * 20, 32), wilson(480, 640)
    assert (found.low, found.high) == pytest.approx((alone.low, alone.high))


def test_the_bootstrap_of_a_mean_is_the_normal_interval():
    """1.96 standard errors each way, for a thousand normal values."""
    values = np.random.default_rng(1).normal(3.0, 2.0, 1_000)
    found = bootstrap([values.tolist()], lambda mean: mean)
    half = 1.96 * values.std() / math.sqrt(1_000)
    assert found.value == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.08)


def test_a_paired_difference_forgets_what_windows_share():
    """Losses that differ by 0.1 in every window, however unlike the windows are."""
    losses = np.random.default_rng(0).normal(3.0, 1.0, 50)
    found = bootstrap([(losses + 0.1).tolist(), losses.tolist()], lambda a, b: a - b)
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary(tiny):
    """All logits equal: 1,024 likely next tokens."""
    import copy

    blank = copy.deepcopy(tiny)
    torch.nn.init.zeros_(blank.get_output_embeddings().weight)
    reading = read(blank, probe_of(blank))
    quality = compare(reading, reading, 6)
    assert quality.perplexity.value == pytest.approx(1_024, rel=1e-5)


def test_losses_are_transformers_own(tiny):
    """Mean loss of each window as the model itself computes it from labels."""
    probe = probe_of(tiny)
    with torch.inference_mode():
        theirs = [float(tiny(input_ids=window[None], labels=window[None]).loss) for window in probe.windows]
    assert read(tiny, probe).losses == pytest.approx(theirs, rel=1e-4)


def test_full_precision_agrees_with_itself(tiny):
    """Ratio one, change zero, every token and answer equal, nothing shown."""
    reading = read(tiny, probe_of(tiny))
    quality = compare(reading, reading, 6)
    assert quality.perplexity_ratio.value == 1.0 and not quality.differs
    assert quality.accuracy_change.value == 0.0
    assert (quality.num_equal_tokens, quality.num_tokens) == (18, 18)
    assert (quality.num_equal_answers, quality.num_answers, quality.equal_answers.high) == (3, 3, 1.0)


def test_answers_are_generated_as_transformers_would(tiny):
    """Our greedy loop against ``generate``."""
    prompts = tokens(3, 8, 1)
    theirs = tiny.generate(prompts, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(answer(tiny, prompts, 6), theirs)


def test_logits_of_a_large_vocabulary_are_computed_a_few_rows_at_a_time(tiny):
    """151,936 × 128 × 3 numbers and no more; a small vocabulary is taken sixteen rows at a time, a long row alone."""

    class Large:
        class config:
            vocab_size = 151_936

    assert [rows_at_once(Large, 128), rows_at_once(Large, 10_000), rows_at_once(tiny, 128)] == [3, 1, 16]


def test_a_ruined_model_is_shown_to_differ():
    """A reading with twice the loss in every window."""
    full = Reading((3.0, 3.1, 2.9, 3.0), (0.4, 0.3, 0.5, 0.4), (8, 8, 8))
    worse = Reading((6.0, 6.1, 5.9, 6.0), (0.0, 0.0, 0.0, 0.0), (0, 1, 0))
    quality = compare(worse, full, 8)
    assert quality.perplexity_ratio.value == pytest.approx(math.exp(3.0)) and quality.differs
    assert quality.num_equal_tokens == 1 and quality.num_equal_answers == 0
    assert math.isfinite(compare(Reading((2e4,), (0.0,), (0,)), Reading((1.0,), (0.0,), (0,)), 8).perplexity.value)


@settings(max_examples=8, deadline=None)
@given(scheme=st.sampled_from(["int8", "int4", "nf4"]))
def test_equal_answers_are_what_a_client_would_see(tiny, scheme):
    """An answer of which every token agrees along the path is the answer that the rounded model generates alone, and
    one with a difference is not."""
    probe = probe_of(tiny)
    with rounded(tiny, parse_scheme(scheme)):
        equal = read(tiny, probe).equal
        alone = answer(tiny, probe.paths[:, :8], 6)
    same = (alone == probe.paths).all(dim=1).tolist()
    assert [count == 6 for count in equal] == same
