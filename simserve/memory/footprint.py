"""What is left for tokens once weights and overhead are in memory, in exact integers.

``simserve memory`` and scenarios that size their cache from a device's memory count with the same functions.

Everything is counted per device and given for all devices together: each holds its part of the weights, its own
overhead, and its part of every token's keys and values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from simserve.memory.schemes import WeightScheme, weight_bytes
from simserve.model_spec import dtype_bytes

GIB = 1024**3
DEFAULT_OVERHEAD_BYTES = 3 * GIB // 2
"""1.5 GiB on each device for activations, the CUDA context and fragmentation: what the textbook reserves."""


class Attention(Protocol):
    """The dimensions that a token's keys and values follow from, such as those of a ``ModelSpec``."""

    @property
    def num_layers(self) -> int:
        """Layers that keep keys and values."""
        ...

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys (and of values) in each layer."""
        ...

    @property
    def head_dim(self) -> int:
        """Numbers in one head's key."""
        ...


class Sized(Attention, Protocol):
    """Attention dimensions and a count of parameters."""

    @property
    def num_parameters(self) -> int:
        """All parameters, embeddings included."""
        ...


@dataclass(frozen=True)
class Budget:
    """One device's memory and what comes off it before tokens; ``tensor_parallel`` such devices share the model."""

    memory_bytes: int
    overhead_bytes: int = DEFAULT_OVERHEAD_BYTES
    tensor_parallel: int = 1


def kv_bytes_per_token(attention: Attention, dtype: str, tensor_parallel: int = 1) -> int:
    """Bytes of one cached token over all layers and devices: 2 · layers · KV heads · head dim · bytes of ``dtype``.

    Devices share out the KV heads; where there are more devices than heads each keeps a copy of one, as vLLM and
    Megatron do, and the copies count. Raises ``ModelError`` for an unknown dtype.
    """
    heads = math.ceil(attention.num_kv_heads / tensor_parallel) * tensor_parallel
    return 2 * attention.num_layers * heads * attention.head_dim * dtype_bytes(dtype)


def cache_bytes(memory_bytes: int, weights_bytes: int, overhead_bytes: int, tensor_parallel: int = 1) -> int:
    """Bytes left for the cache on all devices together.

    ``memory_bytes`` and ``overhead_bytes`` are of **one** device, ``weights_bytes`` of the whole model, which the
    devices share evenly. Zero or negative: so many bytes are missing, and nothing can be served.
    """
    on_each = memory_bytes - overhead_bytes - math.ceil(weights_bytes / tensor_parallel)
    return on_each * tensor_parallel


def resident_tokens(left_bytes: int, bytes_per_token: int) -> int:
    """Tokens whose keys and values fit into ``left_bytes``, over all users; 0 where nothing is left.

    A paged cache rounds down to whole blocks: 337 tokens are 21 blocks of 16, so 336.
    """
    return max(0, left_bytes // bytes_per_token)


def tokens_that_fit(model: Sized, scheme: WeightScheme, kv_dtype: str, budget: Budget) -> int:
    """The whole calculation: tokens of ``model`` with weights in ``scheme`` that the devices of ``budget`` hold."""
    left = cache_bytes(budget.memory_bytes, weight_bytes(model, scheme), budget.overhead_bytes, budget.tensor_parallel)
    return resident_tokens(left, kv_bytes_per_token(model, kv_dtype, budget.tensor_parallel))


def users_at(tokens: int, context: int) -> int:
    """How many users with ``context`` tokens each ``tokens`` hold."""
    return tokens // context


def context_for(tokens: int, num_users: int) -> int:
    """The context that each of ``num_users`` can have when they share ``tokens`` evenly."""
    return tokens // num_users
