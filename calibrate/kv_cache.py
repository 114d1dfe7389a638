"""The caches that steps are timed over, and the bytes that their tensors really hold.

Models and caches of transformers are ``Any`` here: what they declare differs from version to version.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch
from transformers import cache_utils

from calibrate.errors import CalibrationError
from calibrate.options import KvCache
from simserve.model_spec import ModelSpec

_TRANSFORMERS: Any = cache_utils
if not hasattr(_TRANSFORMERS, "DynamicLayer"):  # before 4.56 a cache had no layers
    raise CalibrationError("transformers: must be at least 4.56; pip install -U transformers")


class Caches(Protocol):
    """Makes the cache that a step of some shape starts with."""

    def shape(self, batch_size: int, num_context_tokens: int, num_new_tokens: int) -> Any:  # noqa: ANN401
        """A transformers cache of ``batch_size`` rows holding ``num_context_tokens`` each."""


class InPlaceLayer(_TRANSFORMERS.DynamicLayer):  # type: ignore[misc]  # transformers is an optional extra that mypy reads as Any
    """One layer's keys and values in memory that stays: new ones are written behind the old ones."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self._memory = keys, values
        self._num_tokens = 0
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def lay_out(self, shape: tuple[int, int, int, int], num_tokens: int) -> None:
        """Cut the memory as (rows, heads, room for tokens, head dimension), ``num_tokens`` of each row filled."""
        rows, heads, room, head_dim = shape
        keys, values = (block[: rows * heads * room * head_dim].view(shape) for block in self._memory)
        self.keys, self.values, self._num_tokens = keys, values, num_tokens

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: object, **_kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write what a step computed; returns all keys and values so far, as views."""
        begin, end = self._num_tokens, self._num_tokens + key_states.shape[-2]
        self.keys[:, :, begin:end] = key_states
        self.values[:, :, begin:end] = value_states
        self._num_tokens = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self, *_args: object) -> int:
        """Tokens of each row."""
        return self._num_tokens


class InPlaceCaches:
    """Memory for the largest point, filled once with random keys and values and laid out anew for each step.

    Writing in place is what serving engines do. transformers' own dynamic cache copies everything at every step, which
    at a batch of 64 over 2,048 tokens takes longer than the model itself.
    """

    def __init__(self, spec: ModelSpec, num_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        numel = num_tokens * spec.kv_size
        noise = torch.empty(min(numel, 1 << 16), dtype=dtype, device=device).normal_()

        def block() -> torch.Tensor:
            return noise.repeat(-(-numel // len(noise)))

        self._tail = spec.num_kv_heads, spec.head_dim
        self.memory = [(block(), block()) for _ in range(spec.num_layers)]
        self._layers = [InPlaceLayer(keys, values) for keys, values in self.memory]
        self._cache = _TRANSFORMERS.Cache(layers=self._layers)

    def shape(self, batch_size: int, num_context_tokens: int, num_new_tokens: int) -> Any:  # noqa: ANN401
        """See ``Caches``; costs no time, whatever the shape."""
        heads, head_dim = self._tail
        for layer in self._layers:
            layer.lay_out((batch_size, heads, num_context_tokens + num_new_tokens, head_dim), num_context_tokens)
        return self._cache


class DynamicCaches:
    """transformers' ``DynamicCache``, built anew for each step from one random block."""

    def __init__(self, spec: ModelSpec, config: Any, max_context: int, like: torch.Tensor) -> None:  # noqa: ANN401
        self._config, self._num_layers = config, spec.num_layers
        self._block = like.new_empty((1, spec.num_kv_heads, max_context, spec.head_dim)).normal_()

    def shape(self, batch_size: int, num_context_tokens: int, num_new_tokens: int) -> Any:  # noqa: ANN401
        """See ``Caches``; each layer gets memory of its own, as in a real run."""
        del num_new_tokens  # the step itself makes room
        cache = _TRANSFORMERS.DynamicCache(config=self._config)
        if num_context_tokens:
            rows = self._block[:, :, :num_context_tokens].expand(batch_size, -1, -1, -1)
            for index in range(self._num_layers):
                cache.update(rows, rows, index)
        return cache


def make_caches(kind: KvCache, spec: ModelSpec, model: Any, num_tokens: int, max_context: int) -> Caches:  # noqa: ANN401
    """Caches for points of at most ``num_tokens`` tokens in all and ``max_context`` per sequence."""
    if kind == "in-place":
        return InPlaceCaches(spec, num_tokens, model.dtype, model.device)
    return DynamicCaches(spec, model.config, max_context, next(model.parameters()))


def cache_argument(model: Any) -> str:  # noqa: ANN401
    """What ``forward`` calls its cache: ``cache`` since transformers 5.24, ``past_key_values`` before."""
    parameters = inspect.signature(inspect.unwrap(type(model).forward)).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def measured_kv_bytes_per_token(model: Any, batch_size: int = 2, num_tokens: int = 5) -> int:  # noqa: ANN401
    """Run a prompt through ``model`` over a dynamic cache and count the bytes of its key and value tensors."""
    cache = _TRANSFORMERS.DynamicCache(config=model.config)
    ids = torch.zeros((batch_size, num_tokens), dtype=torch.long, device=model.device)
    with torch.inference_mode():
        model(input_ids=ids, use_cache=True, **{cache_argument(model): cache})
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    total: int = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    per_token, rest = divmod(total, batch_size * num_tokens)
    if rest:
        raise CalibrationError(f"model: its cache of {total} bytes is not a whole number of bytes per token")
    return per_token


def check_kv_bytes(model: Any, spec: ModelSpec, dtype: str) -> int:  # noqa: ANN401
    """Bytes per token of the real cache. Raises ``CalibrationError`` if the formula 2 · layers · KV heads · head
    dimension · bytes says otherwise: then every memory figure of a simulation would be wrong."""
    measured, formula = measured_kv_bytes_per_token(model), spec.kv_bytes_per_token(dtype)
    if measured != formula:
        raise CalibrationError(
            f"model: KV bytes per token must be {formula} by the formula (got {measured} in its cache)"
        )
    return measured
