"""Choices that a reader makes above the charts of a section, and the places of a chart that they fill.

A chart may hold, instead of a value, the text ``$name.key``; the page's script puts there what the chosen option of the
control ``name`` says for ``key``, and draws again when another option is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """One choice: its words, and what it puts in each place."""

    label: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Control:
    """A list to choose from; the first option holds until the reader chooses."""

    name: str
    label: str
    options: tuple[Option, ...]


def places(name: str, keys: Sequence[str]) -> dict[str, str]:
    """The text that stands for each key of a control in a chart."""
    return {key: f"${name}.{key}" for key in keys}


def for_script(controls: Sequence[Control]) -> dict[str, list[dict[str, Any]]]:
    """What the page's script needs of the controls of one section: by name, the values of each option."""
    return {control.name: [dict(option.values) for option in control.options] for control in controls}
