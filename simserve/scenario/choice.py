"""A section of one of several kinds: ``policy: static`` or ``policy: chunked``; ``{profile: …}`` or ``{roofline: …}``.

One object serves three readers: pydantic (which kind validates this mapping), the merge of overrides (which keys does
only the old kind know), and the error messages (what the kinds are, and which one knows a misplaced key).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True)
class Choice:
    """Kinds of a section by name. With a ``key``, the section names its kind by that key's value. Without one, by the
    presence of a key: ``marks`` says which (by default the one that bears the kind's name); ``otherwise`` is the kind
    of a section that has none of them."""

    kinds: Mapping[str, type[BaseModel]]
    key: str | None = None
    marks: Mapping[str, str] = field(default_factory=dict)
    otherwise: str | None = None

    def named(self, section: Mapping[str, Any]) -> list[str]:
        """The kinds that a section names itself, ``otherwise`` left aside; normally one."""
        if self.key is None:
            return [kind for kind in self.kinds if self.mark(kind) in section]
        value = section.get(self.key)
        return [value] if isinstance(value, str) else []

    def mark(self, kind: str) -> str:
        """The key whose presence names a kind."""
        return self.marks.get(kind, kind)

    def kind_of(self, section: object) -> str | None:
        """The one kind of a section (a mapping, or a validated model); None when it names none or several."""
        if isinstance(section, BaseModel):
            return next((kind for kind, model in self.kinds.items() if type(section) is model), None)
        if not isinstance(section, Mapping):
            return None
        named = self.named(section)
        if not named:
            return self.otherwise
        return named[0] if len(named) == 1 else None

    def tag(self, section: object) -> str | None:
        """``kind_of`` in angle brackets: pydantic puts tags into error locations, where they must differ from keys."""
        kind = self.kind_of(section)
        return None if kind is None else f"<{kind}>"

    def keys(self, kind: str) -> frozenset[str]:
        """The keys that a kind knows."""
        return frozenset(self.kinds[kind].model_fields) if kind in self.kinds else frozenset()

    def kinds_with(self, key: str) -> list[str]:
        """The kinds that know a key."""
        return [kind for kind in self.kinds if key in self.keys(kind)]
