"""Measured data and traces that lie beside the checkout on some machines; the project does not contain them."""

from __future__ import annotations

from pathlib import Path

import pytest


def needs(path: Path) -> pytest.MarkDecorator:
    """Skips a test of figures that other people measured where their file or folder is not here."""
    name = path.as_posix().rpartition("shared/data")[2].strip("/")
    return pytest.mark.skipif(
        not path.exists(),
        reason=f"checks figures of other people's data that the project does not contain: {name or 'shared/data'}",
    )
