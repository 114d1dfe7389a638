"""Overrides: a variant's mapping laid over a scenario's, or one ``--set`` value.

An override that names one kind of a section (a policy, an allocator, a step-time model, a workload, a distribution)
drops the keys that only the old kind knows, so that ``{kv_cache: {allocator: contiguous}}`` need not unset a watermark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.scenario.kinds import EXCLUSIVE, choice_at

Path = tuple[str, ...]


def merge(base: Mapping[str, Any], override: Mapping[str, Any], path: Path = ()) -> dict[str, Any]:
    """``base`` with ``override`` laid over it, mappings merged key by key; neither is changed. ``path`` is where in the
    scenario the two stand."""
    merged = without_stale_keys(base, override, path)
    for key, value in override.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = merge(old, value, (*path, key))
        else:
            merged[key] = value
    return merged


def without_stale_keys(base: Mapping[str, Any], override: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """``base`` without the keys that ``override`` makes meaningless; a key that the override gives itself stays."""
    stale = _keys_of_other_kinds(base, override, path)
    alternatives = EXCLUSIVE.get(path, ())
    for chosen in (keys for keys in alternatives if override.get(keys[0]) is not None):
        stale |= {key for other in alternatives if other is not chosen and other[0] in base for key in other}
    if override.get("preemption", "swap") != "swap":
        stale.add("swap")
    return {key: value for key, value in base.items() if key not in stale or key in override}


def _keys_of_other_kinds(base: Mapping[str, Any], override: Mapping[str, Any], path: Path) -> set[str]:
    choice = choice_at(path)
    named = choice.named(override) if choice is not None else []
    if choice is None or len(named) != 1 or named[0] not in choice.kinds:
        return set()
    known = choice.keys(named[0])
    return {key for key in base if key not in known and choice.kinds_with(key)}
