"""YAML text to plain data, safely: one document, one meaning per key, no bombs; a problem is one sentence.

A first pass over the parser's events bounds size, depth and what aliases expand to, before anything is built: a few
lines of aliases can otherwise stand for more nodes than memory holds ("billion laughs").
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from simserve.errors import ScenarioError
from simserve.scenario.messages import printable, shown

MAX_FILE_BYTES = 2 * 2**20
MAX_NODES = 300_000
MAX_DEPTH = 40


def read_yaml(path: Path) -> object:
    """The data of a YAML file. Raises ScenarioError: unreadable, too large, not UTF-8, or not acceptable YAML."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ScenarioError(printable(f"{path}: cannot be read ({error.strerror or error})")) from None
    except ValueError:
        raise ScenarioError(printable(f"{path}: cannot be a file's name")) from None
    if len(raw) > MAX_FILE_BYTES:
        limit = f"{MAX_FILE_BYTES // 2**20} MiB"
        raise ScenarioError(printable(f"{path.name}: must be at most {limit}; put long lists of requests in a trace"))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path.name}: must be UTF-8 text (byte {error.start:,} is not)") from None
    return parse_yaml(text, path.name)


def parse_yaml(text: str, where: str) -> object:
    """The data of a YAML text; ``where`` begins every message. Raises ScenarioError."""
    try:
        _check_size(text, where)
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ScenarioError(printable(f"{where}: {line}is not valid YAML ({error.problem or error.context})")) from None
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0] if str(error) else "unreadable"
        raise ScenarioError(printable(f"{where}: is not valid YAML ({reason})")) from None
    except (ValueError, OverflowError) as error:
        raise ScenarioError(printable(f"{where}: holds a value that cannot be read ({str(error)[:80]})")) from None


if TYPE_CHECKING:
    _BaseLoader = yaml.SafeLoader
else:
    _BaseLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is faster, where it was built


class _Loader(_BaseLoader):
    """The safe loader, except that a key may stand in a mapping once, and must be text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                problem = f"keys must be text, but {shown(key)} is not; put it in quotes"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} twice", key_node.start_mark)
            seen.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def _check_size(text: str, where: str) -> None:
    """Refuse what would expand to too many nodes or nest too deep, in one pass over the parser's events."""
    sizes: dict[str | None, int | None] = {}  # nodes that each anchor stands for, None while it is still open
    open_nodes: list[tuple[str | None, int]] = []  # anchor, and total before it, of each collection around
    total = 0
    for event in yaml.parse(text, _BaseLoader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, start = open_nodes.pop()
            sizes[anchor] = total - start
        elif isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor, 1)
            if size is None:
                raise ScenarioError(printable(f"{where}: line {line}: alias {event.anchor!r} stands inside itself"))
            total += size
        elif isinstance(event, yaml.NodeEvent):
            is_collection = isinstance(event, yaml.CollectionStartEvent)
            sizes[event.anchor] = None if is_collection else 1
            if is_collection:
                open_nodes.append((event.anchor, total))
            total += 1
        if len(open_nodes) > MAX_DEPTH:
            raise ScenarioError(f"{where}: line {line}: must nest at most {MAX_DEPTH} levels deep")
        if total > MAX_NODES:
            raise ScenarioError(f"{where}: line {line}: must stand for at most {MAX_NODES:,} values, aliases expanded")
