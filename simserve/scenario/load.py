"""A scenario file, with ``--set`` overrides, to a validated ``Scenario``; and the JSON schema that editors use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simserve.errors import ScenarioError
from simserve.scenario.merge import without_stale_keys
from simserve.scenario.messages import printable, shown
from simserve.scenario.models import Scenario, build_scenario
from simserve.scenario.yaml_file import parse_yaml, read_yaml

KeyPath = tuple[str, ...]
_SPECULATION = ("engine", "speculation")
_PATHS = {
    *{("workload", "trace"), ("model",), ("step_time", "profile"), ("step_time", "operators")},
    *{(*_SPECULATION, *key) for key in (("acceptance", "measured"), ("draft", "profile"), ("draft", "model"))},
}
_NEVER_NAMES = {("workload", "trace"), ("step_time", "operators"), (*_SPECULATION, "acceptance", "measured")}


def load_scenario(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a YAML file with ``key.path=value`` overrides applied in order, every variant validated.

    Paths in the file are relative to the file; paths in overrides to the working directory. Raises ScenarioError.
    """
    path = Path(path)
    return parse_scenario(read_yaml(path), path.name, path.parent, overrides)


def parse_scenario(
    data: object, source: str = "scenario", base_dir: Path = Path(), overrides: Sequence[str] = ()
) -> Scenario:
    """As ``load_scenario``, from plain data; ``source`` begins every message."""
    scenario = build_scenario(apply_overrides(as_mapping(data, source), overrides), base_dir, source)
    scenario.resolve_variants()
    return scenario


def as_mapping(data: object, source: str) -> Mapping[str, Any]:
    """The plain data of a scenario file, if it is a mapping at all. Raises ScenarioError."""
    if data is None:
        raise ScenarioError(printable(f"{source}: is empty; a scenario needs at least name, model, workload, engine"))
    if not isinstance(data, Mapping):
        raise ScenarioError(printable(f"{source}: must be a mapping of keys to values (got {shown(data)})"))
    return data


def set_key(data: Mapping[str, Any], key: str, value: object, typed: bool = False) -> dict[str, Any]:
    """``data`` with a dotted key set, and without what that makes meaningless (see ``merge``); ``data`` itself stays.

    ``typed`` on a command line, a path means the working directory; else the scenario file's folder.
    """
    keys = tuple(key.split("."))
    return _set(data, keys, _anchored(value, _place(keys)) if typed else value, ())


def has_key(data: object, key: str) -> bool:
    """Whether plain data hold a dotted key."""
    return _present(data, tuple(key.split(".")))


def apply_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """``data`` with each ``a.b=value`` set, the value read as YAML and put in whole. Raises ScenarioError when one
    cannot be read, or when a later one drops what an earlier one set."""
    result = dict(data)
    parsed = [_parse_override(text) for text in overrides]
    for keys, value in parsed:
        result = _set(result, keys, value, ())
    for (keys, _), text in zip(parsed, overrides, strict=True):
        if not _present(result, keys):
            raise ScenarioError(printable(f"--set {text}: another --set names a kind without this key; give only one"))
    return result


def scenario_schema() -> dict[str, Any]:
    """JSON schema of scenario files, for completion and checks in editors."""
    schema = Scenario.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "simserve scenario"}


def _parse_override(text: str) -> tuple[KeyPath, object]:
    name, equals, value_text = text.partition("=")
    keys = tuple(name.strip().split("."))
    if not equals or not all(keys):
        raise ScenarioError(printable(f"--set {text}: must have the form key.path=value"))
    where = f"--set {name.strip()}"
    return keys, _anchored(parse_yaml(value_text, where), _place(keys))


def _place(keys: KeyPath) -> KeyPath:
    """Where in a scenario a key stands, once a variant's override is laid over it."""
    return keys[2:] if keys[0] == "variants" else keys


def _kind_of(keys: KeyPath) -> KeyPath:
    """The place without a tenant's name in it: its trace is as the workload's."""
    return ("workload", *keys[3:]) if keys[:2] == ("workload", "tenants") else keys


def _anchored(value: object, keys: KeyPath) -> object:
    """File paths of an override made absolute: whoever types one means the working directory."""
    if isinstance(value, Mapping):
        return {key: _anchored(inner, (*keys, key)) for key, inner in value.items()}
    if _kind_of(keys) in _PATHS and isinstance(value, str) and value:
        here = Path.cwd() / os.path.expanduser(value)
        is_path = _kind_of(keys) in _NEVER_NAMES or (("/" in value or value.endswith(".json")) and _exists(here))
        return str(here) if is_path else value
    return value


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _set(base: Mapping[str, Any], keys: KeyPath, value: object, path: KeyPath) -> dict[str, Any]:
    """``base`` with ``value`` at ``keys``; ``path`` is where base stands in a scenario, or in a variant's override."""
    key, rest = keys[0], keys[1:]
    if rest:
        inner = base.get(key)
        inside = () if len(path) == 1 and path[0] == "variants" else (*path, key)
        value = _set(inner if isinstance(inner, Mapping) else {}, rest, value, inside)
    section = without_stale_keys(base, {key: value}, path)
    return {**section, key: value}


def _present(data: object, keys: KeyPath) -> bool:
    for key in keys:
        if not isinstance(data, Mapping) or key not in data:
            return False
        data = data[key]
    return True
