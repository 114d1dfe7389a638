"""How many drafts of a pass are accepted: random, and the same whoever asks and when.

Uniform numbers come from counters: number n of a request is output n of the splitmix64 generator (Steele, Lea and
Flood, OOPSLA 2014) whose seed is the request's own output of the generator that the scenario's seed begins.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_PAGE = 256  # tokens whose runs are worked out together


def uniform(seed: int, request_id: int, index: int) -> float:
    """The number in [0, 1), 53 random bits, that decides whether a draft of output token ``index`` agrees."""
    key = _mix((seed + (request_id + 1) * _GOLDEN) & _MASK)
    return (_mix((key + (index + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


class Acceptance:
    """Accepted drafts of every pass of every request: ``probabilities[i]`` is that of draft i, given those before it.

    Leviathan et al. (2023) take one probability for all; measured ones fall along the draft.
    """

    def __init__(self, probabilities: tuple[float, ...], seed: int) -> None:
        self.probabilities = probabilities
        self._seed = seed
        self._page = lru_cache(maxsize=1 << 14)(self._work_out)

    @property
    def num_drafts(self) -> int:
        """Drafts of a pass, γ."""
        return len(self.probabilities)

    def num_accepted(self, request_id: int, num_generated: int) -> int:
        """The leading run of drafts that agree, 0 to γ, in a pass that begins after ``num_generated`` output tokens."""
        page, place = divmod(num_generated, _PAGE)
        return self._page(request_id, page)[place]

    def _work_out(self, request_id: int, page: int) -> bytes:
        """The runs of the passes that could begin at each token of a page; γ ≤ 255 fits a byte."""
        num_drafts = self.num_drafts
        numbers = _uniforms(self._seed, request_id, page * _PAGE, _PAGE + num_drafts)
        runs, agrees = np.zeros(_PAGE, np.uint8), np.ones(_PAGE, np.bool_)
        for i, probability in enumerate(self.probabilities):
            agrees &= numbers[i : i + _PAGE] < probability
            runs += agrees
        return runs.tobytes()


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _uniforms(seed: int, request_id: int, begin: int, count: int) -> npt.NDArray[np.float64]:
    """``uniform`` of ``count`` tokens from ``begin`` on."""
    key = _mix((seed + (request_id + 1) * _GOLDEN) & _MASK)
    steps = np.arange(begin + 1, begin + count + 1, dtype=np.uint64)
    z = np.uint64(key) + steps * np.uint64(_GOLDEN)  # modulo 2⁶⁴, as arrays of unsigned integers are
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
