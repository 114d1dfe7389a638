"""From how many decodes on FlashAttention-2 gives each of them one thread block per KV head.

Few decodes would leave most of a GPU idle, so their contexts are split among thread blocks, and then it does not matter
how unequal they are. FlashAttention-2 stops splitting where the blocks of whole contexts, decodes × KV heads, are at
least 0.8 × two per multiprocessor (``num_splits_heuristic`` in its ``flash_api.cpp``; Dao 2023). vLLM runs it on the
devices below; on Hopper it takes version 3 and on data-centre Blackwell other kernels, whose rules are others.
"""

from __future__ import annotations

import math

MULTIPROCESSORS = {  # by NVIDIA's whitepapers
    "RTX 4090": 128,
    "RTX PRO 6000": 188,
    "RTX 3090": 82,
    "A100": 108,
    "A40": 84,
    "A6000": 84,
    "L40S": 142,
    "L4": 58,
}
_BUSY, _BLOCKS_EACH = 0.8, 2


def unsplit_from(device: str, num_kv_heads: int) -> int | None:
    """The smallest number of decodes that are not split on ``device``, which has ``num_kv_heads`` of the model; None
    for a device whose multiprocessors are not known."""
    words = f" {device.upper().replace('-', ' ')} "
    for name, count in MULTIPROCESSORS.items():
        if f" {name} " in words:
            return max(1, math.ceil(_BUSY * _BLOCKS_EACH * count / num_kv_heads))
    return None
