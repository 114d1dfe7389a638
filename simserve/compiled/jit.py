"""numba, behind two names. Floating point stays as written: nothing is contracted or reordered.

What is compiled allocates nothing, so no references are counted (``_nrt``): that alone makes it ten times as fast.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

_njit: Any = numba.njit  # its types do not know all that it takes
F = TypeVar("F", bound=Callable[..., object])
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}


def compiled(function: F) -> F:
    """``function`` as machine code, for other compiled ones to call; it becomes part of theirs."""
    jitted: F = _njit(no_cpython_wrapper=True, forceinline=True, **_OPTIONS)(function)
    return jitted


def entry(function: F) -> F:
    """``function`` as machine code that is called from here and kept on disk. numba looks at this file and at what
    ``function`` closes over to tell whether what it kept is still right: close over ``sources()``."""
    jitted: F = _njit(cache=True, **_OPTIONS)(function)
    return jitted


def sources() -> int:
    """A number that changes with any file of this room."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:7], "big")
