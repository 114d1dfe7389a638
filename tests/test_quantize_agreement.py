"""Draft and target: passes split by hand and by real speculative decoding, and what positions say together."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrate.model import ModelSource, build_model
from calibrate.quantize.agreement import Passes, by_position, measure_passes, split_passes
from calibrate.quantize.greedy import answer
from simserve.model_spec import load_model_spec

TINY = ModelSource(load_model_spec("tiny"), None, False)


def tokens(rows, width):
    return torch.randint(0, 1_024, (rows, width), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("equal", "draft_tokens", "accepted"),
    [
        ("1111", 2, (2,)),  # two and the target's own; one is left, too few for a second pass
        ("11111", 2, (2, 2)),
        ("0000", 2, (0, 0, 0)),  # one token of the target's own each
        ("1011", 2, (1, 2)),  # a rejected draft, then the target's own in its place
        ("1101", 4, (2,)),
        ("111", 4, ()),  # no pass of four fits
    ],
)
def test_passes_by_hand(equal, draft_tokens, accepted):
    """The leading run, at most the draft, and one more token."""
    assert split_passes([mark == "1" for mark in equal], draft_tokens).accepted == accepted


def speculate(target, draft, prompt, shape):
    """Greedy speculative decoding as it is defined, without a cache: runs of accepted drafts of each pass that does not
    meet the end, and the answer."""
    answer_tokens, draft_tokens = shape
    path, runs, stop = prompt, [], prompt.shape[1] + answer_tokens
    with torch.inference_mode():
        while path.shape[1] + draft_tokens <= stop:
            proposed = answer(draft, path, draft_tokens)[:, path.shape[1] :]
            checked = target(input_ids=torch.cat([path, proposed], dim=1)).logits[0, path.shape[1] - 1 :].argmax(dim=1)
            run = 0
            while run < draft_tokens and int(proposed[0, run]) == int(checked[run]):
                run += 1
            path = torch.cat([path, proposed[:, :run], checked[None, run : run + 1]], dim=1)
            runs.append(run)
    return tuple(runs), path[0, : min(path.shape[1], stop)]


@pytest.mark.parametrize(("noise", "least"), [(0.002, 2), (0.02, 3)])
def test_passes_are_those_of_real_speculative_decoding(noise, least):
    """A draft that is its target with noise in every weight: pass by pass the same accepted drafts, and the target's
    own answer."""
    torch.set_num_threads(1)
    target, draft = (build_model(TINY, "cpu", "fp32", "sdpa", 0) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    prompts, shape = tokens(3, 12), (20, 4)
    alone, seen = answer(target, prompts, 20), set()
    for row, passes in enumerate(measure_passes(target, draft, prompts, shape)):
        runs, path = speculate(target, draft, prompts[row : row + 1], shape)
        assert passes == Passes(runs)
        assert torch.equal(path, alone[row, : len(path)])
        seen |= set(runs)
    assert len(seen) >= least, "the noise must make runs of several lengths, or nothing was compared"


def test_a_draft_that_is_the_target_is_always_right():
    """All accepted, at every position."""
    target = build_model(TINY, "cpu", "fp32", "sdpa", 0)
    passes = measure_passes(target, target, tokens(2, 8), (15, 4))
    assert passes == [Passes((4, 4, 4))] * 2
    assert by_position(passes, 4) == ((6, 6, 6, 6), (6, 6, 6, 6))


def test_positions_end_where_no_pass_came():
    """Nothing beyond the second: it was never tried."""
    assert by_position([Passes((0, 1)), Passes((1, 0))], 4) == ((4, 2), (2, 0))


@given(
    st.lists(st.lists(st.booleans(), min_size=6, max_size=40), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_the_rates_of_positions_give_the_tokens_of_a_pass(marks, draft_tokens):
    """1 + α₁ + α₁α₂ + … with the measured rates is the mean of accepted drafts and one: a simulation that draws
    position by position makes as many tokens a pass as were measured."""
    passes = [split_passes(row, draft_tokens) for row in marks]
    tried, accepted = by_position(passes, draft_tokens)
    reach, expected = 1.0, 1.0
    for yes, all_ in zip(accepted, tried, strict=True):
        reach *= yes / all_
        expected += reach
    runs = [run for row in passes for run in row.accepted]
    assert expected == pytest.approx(sum(runs) / len(runs) + 1)
