"""transformers' ``generate`` on groups of requests: static batching as a program that has no server does it."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers

from calibrate.clock import Timing
from calibrate.replay.ask import AskedRequest, ReplaySettings
from calibrate.replay.driver import EngineIdentity
from calibrate.replay.ledger import Taken

_AUTO: Any = transformers


class StaticReplay:
    """Groups of ``max_num_seqs`` requests in order of arrival, the last one smaller; prompts padded on the left to the
    longest; every group runs until its longest answer is complete, rows of finished members included."""

    def __init__(self, model: Any, settings: ReplaySettings) -> None:  # noqa: ANN401 - a torch module
        self.settings = settings
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self.identity = EngineIdentity("transformers generate", versions)
        torch.set_num_threads(settings.threads)
        self._model = model
        self._waiting: list[AskedRequest] = []

    def add(self, asked: AskedRequest) -> Timing:
        """It waits for a group."""
        self._waiting.append(asked)
        return Timing(0.0, 0.0)

    def is_ready(self, more_coming: bool) -> bool:
        """When a group is full, or nobody can come any more."""
        return bool(self._waiting) and (len(self._waiting) >= self.settings.max_num_seqs or not more_coming)

    def step(self) -> list[Taken]:
        """All steps of one group. What ``generate`` does after its last token is part of the last step."""
        size = self.settings.max_num_seqs
        group, self._waiting = self._waiting[:size], self._waiting[size:]
        moments = Moments()
        self._generate(group, moments)
        moments.close()
        steps = enumerate(moments.timings())
        return [_step_of(group, number, timing) for number, timing in steps]

    def stop(self) -> None:
        """Nothing is held between groups."""

    def _generate(self, group: list[AskedRequest], moments: Moments) -> None:
        width = max(len(asked.prompt) for asked in group)
        tokens = torch.zeros(len(group), width, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, asked in enumerate(group):
            tokens[row, width - len(asked.prompt) :] = torch.tensor(asked.prompt)
            mask[row, width - len(asked.prompt) :] = 1
        longest = max(asked.num_output_tokens for asked in group)
        generate(self._model, tokens, mask, longest, moments)


def generate(
    model: Any,  # noqa: ANN401 - a torch module
    tokens: torch.Tensor,
    mask: torch.Tensor,
    num_tokens: int,
    moments: Moments,
    **cache: object,
) -> None:
    """``num_tokens`` more for every row of ``tokens``, greedily, whatever they are; ``moments`` is told of each."""
    with torch.inference_mode():
        model.generate(
            input_ids=tokens.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            use_cache=True,
            stopping_criteria=_AUTO.StoppingCriteriaList([moments]),
            **cache,
        )


class Moments(transformers.StoppingCriteria):
    """Called after every token: both clocks at each, from the moment of making; ends nothing."""

    def __init__(self) -> None:
        self._readings = [(time.perf_counter(), time.process_time())]

    def __call__(self, input_ids: Any, scores: Any, **_: object) -> Any:  # noqa: ANN401
        """Note the time; no row is to stop."""
        del scores
        self._readings.append((time.perf_counter(), time.process_time()))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    def close(self) -> None:
        """The last step ends now."""
        self._readings[-1] = (time.perf_counter(), time.process_time())

    def timings(self) -> list[Timing]:
        """What each step took."""
        pairs = zip(self._readings, self._readings[1:], strict=False)
        return [Timing(after[0] - before[0], after[1] - before[1]) for before, after in pairs]


def _step_of(group: list[AskedRequest], number: int, timing: Timing) -> Taken:
    """Step ``number`` of a group: its prefill, or a decode of those that are not finished, on as many rows."""
    width = max(len(asked.prompt) for asked in group)
    if number == 0:
        work = [(asked.id, len(asked.prompt), 0) for asked in group]
        return Taken(timing, work, num_batched_tokens=len(group) * width)
    alive = [asked for asked in group if asked.num_output_tokens > number]
    work = [(asked.id, 1, len(asked.prompt) + number - 1) for asked in alive]
    return Taken(timing, work, num_batched_tokens=len(group))
