"""How many cache blocks a server finds room for: vLLM's own sum, with estimates where vLLM measures.

vLLM (``v1/worker/gpu_worker.py``, ``determine_available_memory``) takes ``gpu_memory_utilization`` of the memory that
the device shows, and subtracts the weights, the peak of one profiling step (``max_num_batched_tokens`` tokens through
the model, then ``max_num_seqs`` rows through the sampler), what CUDA itself holds and, from 0.21 on, its CUDA graphs.
The rest is the cache: blocks = bytes // bytes of a block.

What vLLM measures is estimated here. The sampler's 26 bytes per row and word of the vocabulary are its logits (2) and
their fp32 copy (4), sorted values and indices (4 + 8), and two sets of probabilities (4 + 4). ``OTHER_BYTES`` is
the rest in the one run whose figures are known to the byte: Llama-3.1-8B under vLLM 0.19 on an RTX 4090, 256 sequences,
2,048 tokens, 2,588 blocks, in which weights and cache leave 1.15 GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.model_spec import ModelSpec, dtype_bytes
from simserve.step_time.hardware import GIB

SAMPLER_BYTES = 26
OTHER_BYTES = 383_740_000
GRAPH_BYTES = GIB // 2  # logs say 0.1 to 0.6 GiB; it is a guess


@dataclass(frozen=True)
class CacheShape:
    """What a block takes on one device."""

    spec: ModelSpec
    kv_dtype: str
    block_size: int
    tensor_parallel: int

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on one device; heads are split over the devices, and repeated when there are too few."""
        heads = max(1, self.spec.num_kv_heads // self.tensor_parallel)
        return 2 * self.spec.num_layers * heads * self.spec.head_dim * dtype_bytes(self.kv_dtype) * self.block_size


@dataclass(frozen=True)
class Room:
    """Bytes of one device, and who takes them; ``granted`` is a ``share`` of what the device called ``name`` shows."""

    name: str
    share: float
    granted: int
    weights: int
    step: int
    other: int

    @property
    def left(self) -> int:
        """Bytes for the cache; below 1 there are none."""
        return self.granted - self.weights - self.step - self.other

    def sentence(self) -> str:
        """The sum in words."""
        taken = (
            f"{self.weights / GIB:.2f} GiB of weights, {self.step / GIB:.2f} GiB for one step (an estimate), "
            f"{self.other / GIB:.2f} GiB for CUDA and its graphs (an estimate)"
        )
        left = f"leave {max(self.left, 0) / GIB:.2f} GiB"
        return f"of {self.name}'s memory {self.share:g} is granted, {self.granted / GIB:.2f} GiB; {taken}, {left}"


def step_bytes(spec: ModelSpec, max_num_batched_tokens: int, max_num_seqs: int, tensor_parallel: int) -> int:
    """Peak of a profiling step, in 16-bit activations: the widest layer over tokens, or the sampler over rows."""
    wide = 3 * spec.intermediate_size // tensor_parallel + 4 * spec.hidden_size
    rows = min(max_num_seqs, max_num_batched_tokens)
    return max(2 * wide * max_num_batched_tokens, SAMPLER_BYTES * rows * spec.vocab_size)
