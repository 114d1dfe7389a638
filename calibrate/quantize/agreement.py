"""How often a draft says what its target says, in the passes that greedy speculative decoding would make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calibrate.quantize.greedy import answer, next_tokens

Model = Any


@dataclass(frozen=True)
class Passes:
    """Of one answer: ``accepted`` drafts of each pass. A pass that met the end of the answer is not counted: it might
    have gone on."""

    accepted: tuple[int, ...]


def measure_passes(target: Model, draft: Model, prompts: torch.Tensor, shape: tuple[int, int]) -> list[Passes]:
    """The passes over the greedy answers of ``target`` to ``prompts``; ``shape`` is (tokens of an answer, drafts of a
    pass).

    Greedy speculative decoding emits what the target alone would, so the target's answers are the paths; and as long as
    drafts are accepted, the draft stands where the target does, so that one forward of the draft along the path tells
    what it would propose in every pass."""
    answer_tokens, draft_tokens = shape
    num_prompt = prompts.shape[1]
    paths = answer(target, prompts, answer_tokens)
    equal = next_tokens(draft, paths, num_prompt) == paths[:, num_prompt:]
    return [split_passes(row, draft_tokens) for row in equal.tolist()]


def split_passes(equal: list[bool], draft_tokens: int) -> Passes:
    """Passes along an answer whose token i the draft would have said if ``equal[i]``: the leading run of those is
    accepted, at most ``draft_tokens``, and one token of the target's own follows."""
    accepted: list[int] = []
    start = 0
    while start + draft_tokens <= len(equal):
        run = next((i for i in range(draft_tokens) if not equal[start + i]), draft_tokens)
        accepted.append(run)
        start += run + 1
    return Passes(tuple(accepted))


def by_position(passes: list[Passes], draft_tokens: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(tried, accepted) of each position: tried where all drafts before it were accepted. Ends where nothing was
    tried."""
    runs = np.array([run for answer_passes in passes for run in answer_passes.accepted])
    tried = [int((runs >= position).sum()) for position in range(draft_tokens)]
    accepted = [int((runs > position).sum()) for position in range(draft_tokens)]
    length = next((i for i, count in enumerate(tried) if count == 0), draft_tokens)
    return tuple(tried[:length]), tuple(accepted[:length])
