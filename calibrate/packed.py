"""Steps as a server packs them: one row of tokens through the dense layers, attention for each sequence by itself.

A packed step is a tuple of parts. Sequences of one part have the same shape and attend in one call of the model's own
attention kernel, each over its own cached tokens; different parts never see one another.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import transformers
from transformers import cache_utils

_TRANSFORMERS: Any = transformers
_CACHES: Any = cache_utils
_NAME = "simserve_packed"


class Part(NamedTuple):
    """``num_seqs`` sequences that each compute ``num_new_tokens`` over ``num_context_tokens`` cached ones."""

    num_seqs: int
    num_new_tokens: int
    num_context_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the packed row."""
        return self.num_seqs * self.num_new_tokens

    @property
    def cache_tokens(self) -> int:
        """Tokens in the cache when the step ends."""
        return self.num_seqs * (self.num_context_tokens + self.num_new_tokens)


class PackedLayer(_CACHES.DynamicLayer):  # type: ignore[misc]  # transformers is an optional extra that mypy reads as Any
    """One layer's keys and values, cut into the parts of a step."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self._memory = keys, values
        self._spans: list[tuple[Part, int]] = []
        self.parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def lay_out(self, parts: Sequence[Part], tail: tuple[int, int]) -> None:
        """Cut the memory into (sequences, heads, tokens, head dimension) of each part, one behind the other;
        ``tail`` is (heads, head dimension)."""
        heads, head_dim = tail
        self.parts, self._spans, begin = [], [], 0
        for part, end in zip(parts, accumulate(part.cache_tokens * heads * head_dim for part in parts), strict=True):
            room = part.num_context_tokens + part.num_new_tokens
            keys, values = (block[begin:end].view(part.num_seqs, heads, room, head_dim) for block in self._memory)
            self.parts.append((keys, values))
            begin = end
        starts = accumulate((part.num_tokens for part in parts), initial=0)
        self._spans = list(zip(parts, starts, strict=False))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: object, **_kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write each part's new keys and values behind its old ones; attention reads them from ``parts``."""
        for (part, start), (keys, values) in zip(self._spans, self.parts, strict=True):
            stop = start + part.num_tokens
            keys[:, :, part.num_context_tokens :] = split(key_states[:, :, start:stop], part.num_seqs)
            values[:, :, part.num_context_tokens :] = split(value_states[:, :, start:stop], part.num_seqs)
        return key_states, value_states

    def get_seq_length(self, *_args: object) -> int:
        """Nothing of the row itself is cached; positions are given."""
        return 0


class PackedSteps:
    """Runs packed steps of ``model`` over ``memory``, (keys, values) of each layer as flat tensors."""

    def __init__(self, model: Any, memory: Sequence[tuple[torch.Tensor, torch.Tensor]], attn: str) -> None:  # noqa: ANN401
        self._model, self._attn = model, attn
        self._layers = [PackedLayer(keys, values) for keys, values in memory]
        self._cache = _CACHES.Cache(layers=self._layers)
        config = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._tail = config.num_key_value_heads, head_dim
        self._parts: tuple[Part, ...] = ()
        self._masks: list[torch.Tensor | None] = []

    def prepare(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Lay out the caches; returns the arguments of ``forward`` but for its tokens and the cache's name."""
        device = self._model.device
        self._parts = tuple(parts)
        for layer in self._layers:
            layer.lay_out(self._parts, self._tail)
        positions = [torch.arange(p.num_context_tokens, p.num_context_tokens + p.num_new_tokens) for p in parts]
        row = torch.cat([at.repeat(part.num_seqs) for at, part in zip(positions, parts, strict=True)])
        lengths = [part.num_new_tokens for part in parts for _ in range(part.num_seqs)]
        last = torch.tensor(list(accumulate(lengths))) - 1
        return {"position_ids": row[None].to(device), "logits_to_keep": last.to(device)}

    @property
    def cache(self) -> Any:  # noqa: ANN401 - a transformers cache
        """What the model calls its cache."""
        return self._cache

    def forward(self, **inputs: Any) -> Any:  # noqa: ANN401
        """The model's forward with attention per part. Masks are made once per step, as transformers makes its own."""
        self._masks = [self._mask(part) for part in self._parts]
        _TRANSFORMERS.AttentionInterface.register(_NAME, self._attend)
        config = self._model.config
        before = config._attn_implementation
        config._attn_implementation = _NAME
        try:
            return self._model(**inputs)
        finally:
            config._attn_implementation = before

    def _attend(self, module: Any, query: torch.Tensor, *_args: object, **kwargs: Any) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        """Attention of one layer: (1, heads, tokens, head dimension) -> (1, tokens, heads, head dimension)."""
        kernel = _kernel(module, self._attn)
        rows = []
        bounds = pairwise(accumulate((part.num_tokens for part in self._parts), initial=0))
        views = self._layers[module.layer_idx].parts
        for part, (start, stop), (keys, values), mask in zip(self._parts, bounds, views, self._masks, strict=True):
            new = split(query[:, :, start:stop], part.num_seqs)
            out, _ = kernel(module, new, keys, values, mask, dropout=0.0, scaling=kwargs.get("scaling"))
            rows.append(out.reshape(1, part.num_tokens, out.shape[2], out.shape[3]))
        return torch.cat(rows, dim=1), None

    def _mask(self, part: Part) -> torch.Tensor | None:
        """What a kernel needs to be told: sdpa aligns causality with the first cached token, eager knows none."""
        new, context = part.num_new_tokens, part.num_context_tokens
        if new == 1 or self._attn not in ("sdpa", "eager") or (self._attn == "sdpa" and context == 0):
            return None
        device = self._model.device
        allowed = torch.ones(new, context + new, dtype=torch.bool, device=device).tril(diagonal=context)[None, None]
        if self._attn == "sdpa":
            return allowed
        blocked = torch.finfo(self._model.dtype).min
        return torch.zeros(allowed.shape, dtype=self._model.dtype, device=device).masked_fill_(~allowed, blocked)


def split(states: torch.Tensor, count: int) -> torch.Tensor:
    """(1, heads, count · new, head dimension) of a packed row as (count, heads, new, head dimension)."""
    _, heads, num_tokens, head_dim = states.shape
    return states.view(heads, count, num_tokens // count, head_dim).transpose(0, 1)


def _kernel(module: Any, attn: str) -> Any:  # noqa: ANN401
    """The attention function that ``module`` would have called."""
    if attn == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return _TRANSFORMERS.modeling_utils.ALL_ATTENTION_FUNCTIONS[attn]
