"""What a model makes of a text: losses by window, and whether it goes the way that the full-precision model went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from calibrate.quantize.greedy import next_tokens, rows_at_once
from calibrate.quantize.intervals import bootstrap, wilson, wilson_of_groups
from simserve.step_time.quality_schema import Estimate, Quality

Model = Any


@dataclass(frozen=True)
class Probe:
    """What every model is asked: ``windows`` (of the text) to predict, and ``paths``, each a prompt of ``num_prompt``
    tokens with the answer that the full-precision model gave. ``chosen`` are the tokens that it would choose after
    each prefix of them."""

    windows: torch.Tensor
    paths: torch.Tensor
    num_prompt: int
    chosen: torch.Tensor


@dataclass(frozen=True)
class Reading:
    """Of one model, by window and by answer: mean loss per token, share of right tokens, tokens that agree."""

    losses: tuple[float, ...]
    right: tuple[float, ...]
    equal: tuple[int, ...]


def read(model: Model, probe: Probe) -> Reading:
    """Ask ``model`` everything in ``probe``."""
    losses: list[float] = []
    right: list[float] = []
    for windows in torch.split(probe.windows, rows_at_once(model, probe.windows.shape[1])):
        with torch.inference_mode():
            logits = model(input_ids=windows, use_cache=False).logits[:, :-1].float()
        targets = windows[:, 1:]
        losses += functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(dim=1).tolist()
        right += (logits.argmax(dim=2) == targets).float().mean(dim=1).tolist()
    chosen = next_tokens(model, probe.paths, probe.num_prompt)
    return Reading(tuple(losses), tuple(right), tuple((chosen == probe.chosen).sum(dim=1).tolist()))


def compare(reading: Reading, full: Reading, answer_tokens: int, seed: int = 0) -> Quality:
    """The figures of one model, beside those of the full-precision one on the same windows and answers."""
    whole = sum(count == answer_tokens for count in reading.equal)
    return Quality(
        perplexity=bootstrap([reading.losses], _exp, seed),
        perplexity_ratio=bootstrap([reading.losses, full.losses], lambda a, b: _exp(a - b), seed),
        accuracy=bootstrap([reading.right], lambda a: a, seed),
        accuracy_change=change(reading.right, full.right, seed),
        agreement=wilson_of_groups(reading.equal, answer_tokens),
        num_equal_tokens=sum(reading.equal),
        num_tokens=len(reading.equal) * answer_tokens,
        equal_answers=wilson(whole, len(reading.equal)),
        num_equal_answers=whole,
        num_answers=len(reading.equal),
        num_windows=len(reading.losses),
    )


def change(after: tuple[float, ...], before: tuple[float, ...], seed: int = 0) -> Estimate:
    """Mean difference of two scores of the same questions, paired. One question of sixteen that went the other way
    gives an interval that holds zero: no effect was shown."""
    return bootstrap([after, before], lambda a, b: a - b, seed)


def _exp(value: float) -> float:
    return float(np.exp(min(value, 700.0)))  # finite, however ruined the model
