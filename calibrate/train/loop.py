"""The training itself: next-token prediction with AdamW, in one thread, the same weights for the same seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

WARM_UP_STEPS = 50
WEIGHT_DECAY = 0.1
LARGEST_GRADIENT = 1.0


@dataclass(frozen=True)
class Shape:
    """A decoder of the llama family. Where widths are multiples of 128, groups of 128 weights are whole."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int


@dataclass(frozen=True)
class Schedule:
    """``num_steps`` batches of ``batch_size`` × ``num_tokens``; the learning rate warms up and falls as a cosine."""

    num_steps: int
    learning_rate: float
    batch_size: int = 8
    num_tokens: int = 128
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        warm = min(1.0, (step + 1) / WARM_UP_STEPS)
        return self.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / self.num_steps))


def new_model(shape: Shape, vocabulary: int, seed: int) -> Any:  # noqa: ANN401 - a torch module
    """Random weights, ready to be trained."""
    torch.manual_seed(seed)
    auto: Any = transformers
    config = auto.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.hidden_size // shape.num_heads,
        max_position_embeddings=2_048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return auto.LlamaForCausalLM(config)


def train(
    model: Any,  # noqa: ANN401 - a torch module
    tokens: torch.Tensor,
    schedule: Schedule,
    on_step: Callable[[float], None] = lambda _loss: None,
) -> list[float]:
    """Train ``model`` on windows drawn from ``tokens`` (one dimension); returns the loss of every step."""
    generator = torch.Generator().manual_seed(schedule.seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)
    offsets = torch.arange(schedule.num_tokens)
    losses: list[float] = []
    model.train()
    for step in range(schedule.num_steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate_at(step)
        starts = torch.randint(0, len(tokens) - schedule.num_tokens, (schedule.batch_size, 1), generator=generator)
        batch = tokens[starts + offsets]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
        optimizer.step()
        losses.append(float(loss.detach()))
        on_step(losses[-1])
    model.eval()
    return losses
