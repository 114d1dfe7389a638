"""What tests have a fresh process do. In a module of its own: the process imports it, and nothing that takes long."""

from __future__ import annotations

import os
from collections.abc import Callable

from simserve.errors import ModelError


def told(tell: Callable[[str], None], name: str) -> tuple[int, str]:
    """Tells a name letter by letter; answers with its process and the name."""
    for letter in name:
        tell(letter)
    return os.getpid(), name


def fails(_tell: Callable[[str], None], kind: str) -> None:
    """Ends by an error of the input, by a defect, or without a word."""
    if kind == "input":
        raise ModelError("model: 'x' is unknown")
    if kind == "killed":
        os._exit(9)
    raise RuntimeError("a defect")
