"""What differs between what two runs were asked to do, and with what they did it: dotted keys with both values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simserve.compare.read import Run

Difference = dict[str, Any]  # {"key", "a", "b", "pair"}; a side that lacks the key has no entry
HEAD = ("simserve_version", "revision", "versions", "platform", "seed", "workload_notes")
_MISSING = object()


def run_differences(a: Run, b: Run, pairs: Sequence[tuple[str, str]]) -> list[Difference]:
    """The list, what matters most first: the scenario's keys, step times, then versions and machine.

    A difference that all pairs share stands once, with ``pair`` null; any other has the index of its pair. When, how
    long and by which command a run was made is no difference.
    """
    per_pair = [_pair_differences(a, b, first, second) for first, second in pairs]
    shared = [one for one in per_pair[0] if all(one in others for others in per_pair[1:])]
    listed = [{**one, "pair": None} for one in shared]
    for i, differences in enumerate(per_pair):
        listed += [{**one, "pair": i} for one in differences if one not in shared]
    head_a, head_b = ({key: run.manifest.get(key) for key in HEAD} for run in (a, b))
    rest = [{**one, "pair": None} for one in dotted_differences(head_a, head_b)]
    return listed + [one for one in rest if one not in listed]  # a seed is in the resolved scenario too


def dotted_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    """Leaves of two nested mappings that differ, in A's order, then what only B has. Lists are leaves."""
    flat_a, flat_b = dict(_leaves(a)), dict(_leaves(b))
    found = []
    for key in [*flat_a, *(key for key in flat_b if key not in flat_a)]:
        sides = {"a": flat_a.get(key, _MISSING), "b": flat_b.get(key, _MISSING)}
        if not _equal(sides["a"], sides["b"]):
            found.append({"key": key, **{side: value for side, value in sides.items() if value is not _MISSING}})
    return found


def _pair_differences(a: Run, b: Run, first: str, second: str) -> list[Difference]:
    """Of one pair: the resolved scenario as it ran, and where its step times came from."""
    sides = []
    for run, name in ((a, first), (b, second)):
        entry = run.manifest["variants"][name]
        scenario = entry.get("resolved_scenario")
        keys = dict(scenario) if isinstance(scenario, Mapping) else {}
        keys.pop("variants", None)
        keys["variant"] = name
        if "step_time" in entry:
            keys["step_time_source"] = entry["step_time"]
        sides.append(keys)
    return dotted_differences(sides[0], sides[1])


def _leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, child in value.items():
        dotted = f"{path}.{key}" if path else str(key)
        if isinstance(child, Mapping) and child:
            yield from _leaves(child, dotted)
        else:
            yield dotted, child


def _equal(a: object, b: object) -> bool:
    """As JSON tells values apart (true is no number), but 1 and 1.0 are one number."""
    if isinstance(a, float) or isinstance(b, float):
        return a == b and not isinstance(a, bool) and not isinstance(b, bool)
    if a is _MISSING or b is _MISSING:
        return a is b
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
