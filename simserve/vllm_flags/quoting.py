"""A text as one YAML value."""

from __future__ import annotations

import math
import re

import yaml

_PLAIN = re.compile(r"(?!true$|false$|null$|yes$|no$|on$|off$)[A-Za-z./][\w./-]*", re.IGNORECASE | re.ASCII)


def quoted(text: str) -> str:
    """As it is where nothing in it means anything to YAML, else in double quotes."""
    if _PLAIN.fullmatch(text):
        return text
    return str(yaml.safe_dump(text, default_style='"', width=math.inf)).strip()
