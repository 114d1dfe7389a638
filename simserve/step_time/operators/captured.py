"""Sizes that an engine captures CUDA graphs for: a step of fewer tokens is padded to the next of them.

vLLM v1 captures 1, 2 and 4 tokens, then multiples of 8 below 256 and of 16 from there, up to twice its slots and at
most 512 unless it is told another limit (``VllmConfig._set_cudagraph_sizes``; a run's ``meta.json`` lists them). Steps
beyond the limit run as they are. The output head sees the sequences alone: it runs outside of the graphs.
"""

from __future__ import annotations

from bisect import bisect_left

_FIRST, _FINE, _COARSE, _COARSE_FROM = (1, 2, 4), 8, 16, 256


class CapturedSizes:
    """Which size a step runs at where graphs are captured up to ``most`` tokens; None: nothing is captured."""

    def __init__(self, most: int | None) -> None:
        limit = most or 0
        fine = range(_FINE, min(limit + 1, _COARSE_FROM), _FINE)
        self.sizes = [*(n for n in _FIRST if n <= limit), *fine, *range(_COARSE_FROM, limit + 1, _COARSE)]

    def padded(self, num_tokens: int) -> int:
        """The smallest captured size that holds ``num_tokens``, or just those where none does."""
        i = bisect_left(self.sizes, num_tokens)
        return self.sizes[i] if i < len(self.sizes) else num_tokens
