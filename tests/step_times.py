"""Step-time models of the tests: each has ``ramp`` (the protocol) and ``seconds`` (the same thing, plainly)."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

from simserve.request import Batch
from simserve.step_time.stretch import UNBOUNDED, Ramp, StepTime


def context_tokens(batch: Batch, step: int) -> int:
    """Cached tokens that step ``step`` of a repeated decision reads."""
    grown = batch.num_batched_tokens * step  # a decode's context grows by one, a chunk's by its own new tokens
    return batch.decode_context_tokens + sum(chunk.num_context_tokens for chunk in batch.chunks) + grown


@dataclass(frozen=True)
class ConstantStepTime:
    """Every step takes the same time."""

    step_s: float = 0.01

    def seconds(self, batch: Batch, step: int) -> float:
        return self.step_s

    def ramp(self, batch: Batch, step: int) -> Ramp:
        return Ramp(self.step_s, 0.0, UNBOUNDED)


@dataclass(frozen=True)
class TokenStepTime:
    """Time proportional to the tokens a step computes: a server whose work is the prompt."""

    token_s: float = 0.001

    def seconds(self, batch: Batch, step: int) -> float:
        return self.token_s * batch.num_batched_tokens

    def ramp(self, batch: Batch, step: int) -> Ramp:
        return Ramp(self.token_s * batch.num_batched_tokens, 0.0, UNBOUNDED)


@dataclass(frozen=True)
class AffineStepTime:
    """A base, a price per token computed (dearer in a decode), and a price per cached token read."""

    base_s: float = 0.005
    prefill_token_s: float = 0.0001
    decode_s: float = 0.0003
    context_token_s: float = 0.000002

    def seconds(self, batch: Batch, step: int) -> float:
        new = sum(chunk.num_new_tokens for chunk in batch.chunks)
        computing_s = self.prefill_token_s * new + self.decode_s * batch.num_decodes
        return self.base_s + computing_s + self.context_token_s * context_tokens(batch, step)

    def ramp(self, batch: Batch, step: int) -> Ramp:
        return Ramp(self.seconds(batch, step), self.context_token_s * batch.num_batched_tokens, UNBOUNDED)


@dataclass(frozen=True)
class TableStepTime:
    """Piecewise linear in the context read, as a measured table is; flat after its last point and flagged there.

    ``points`` are (context tokens, seconds), contexts increasing from 0; a step also pays ``token_s`` per token.
    """

    points: tuple[tuple[int, float], ...] = ((0, 0.004), (40, 0.007), (90, 0.0065), (200, 0.012))
    token_s: float = 0.0002

    def seconds(self, batch: Batch, step: int) -> float:
        context, paid_s = context_tokens(batch, step), self.token_s * batch.num_batched_tokens
        for (left, left_s), (right, right_s) in zip(self.points, self.points[1:], strict=False):
            if left <= context < right:
                return paid_s + left_s + (right_s - left_s) * (context - left) / (right - left)
        return paid_s + self.points[-1][1]

    def ramp(self, batch: Batch, step: int) -> Ramp:
        context, growth = context_tokens(batch, step), batch.num_batched_tokens
        i = bisect.bisect_right([x for x, _ in self.points], context)
        if i == len(self.points):
            return Ramp(self.seconds(batch, step), 0.0, UNBOUNDED, extrapolated=True)
        (left, left_s), (right, right_s) = self.points[i - 1], self.points[i]
        slope_s = growth * (right_s - left_s) / (right - left)
        return Ramp(self.seconds(batch, step), slope_s, max(1, math.ceil((right - context) / growth)))


@dataclass(frozen=True)
class LongestStepTime:
    """A base, and a price per token of the longest context among the decodes, for which the others wait."""

    base_s: float = 0.004
    longest_token_s: float = 0.0001
    needs_max_decode_context = True

    def seconds(self, batch: Batch, step: int) -> float:
        return self.base_s + self.longest_token_s * (batch.max_decode_context + step if batch.num_decodes else 0)

    def ramp(self, batch: Batch, step: int) -> Ramp:
        return Ramp(self.seconds(batch, step), self.longest_token_s if batch.num_decodes else 0.0, UNBOUNDED)


MODELS: tuple[StepTime, ...] = (
    ConstantStepTime(),
    TokenStepTime(),
    AffineStepTime(),
    TableStepTime(),
    LongestStepTime(),
)
