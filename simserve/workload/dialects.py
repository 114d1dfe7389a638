"""Whose traces we read: the names of their columns, matched with case, spaces and underscores folded."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from simserve.workload.refusal import refusal


@dataclass(frozen=True)
class Dialect:
    """One family of traces: which column holds what, and how time is written."""

    name: str
    time: Literal["datetime", "seconds"]
    columns: Mapping[str, str]  # our word -> the dialect's column
    optional: Mapping[str, str] = field(default_factory=dict)


AZURE = Dialect(  # Azure Public Dataset: 2023 (Splitwise, ISCA'24), 2024 (DynamoLLM, HPCA'25), multimodal 2025
    "azure",
    "datetime",
    {"arrival": "TIMESTAMP", "num_prompt_tokens": "ContextTokens", "num_output_tokens": "GeneratedTokens"},
)
SIMSERVE = Dialect(
    "simserve",
    "seconds",
    {"arrival": "arrival_s", "num_prompt_tokens": "num_prompt_tokens", "num_output_tokens": "num_output_tokens"},
    {"max_output_tokens": "max_output_tokens", "priority": "priority"},
)
DIALECTS = {dialect.name: dialect for dialect in (AZURE, SIMSERVE)}


def choose_dialect(found: Sequence[str], name: str, where: str) -> Dialect:
    """The dialect called ``name``, or for ``auto`` the one that the columns fit best. Raises TraceError when they fit
    none by at least two of its columns."""
    if name != "auto":
        return DIALECTS[name]
    folded = {fold(column) for column in found}
    hits = {each.name: sum(fold(column) in folded for column in each.columns.values()) for each in DIALECTS.values()}
    best = max(hits, key=hits.__getitem__)
    if hits[best] < 2:
        known = "; ".join(f"{each.name} ({', '.join(each.columns.values())})" for each in DIALECTS.values())
        raise refusal(where, f"must have the columns of a known format: {known} (found: {_shown(found)})")
    return DIALECTS[best]


def match_columns(found: Sequence[str], dialect: Dialect, where: str) -> dict[str, str]:
    """Our word -> the file's own column name. Raises TraceError naming what is missing, or stands twice."""
    by_fold: dict[str, list[str]] = {}
    for column in found:
        by_fold.setdefault(fold(column), []).append(column)
    missing = [column for column in dialect.columns.values() if fold(column) not in by_fold]
    if missing:
        raise refusal(where, _missing(missing, found, dialect))
    wanted = {**dialect.columns, **dialect.optional}
    for column in wanted.values():
        if len(by_fold.get(fold(column), [])) > 1:
            twice = " and ".join(map(repr, by_fold[fold(column)]))
            raise refusal(where, f"must have one column {column!r} (got {twice})")
    return {word: by_fold[fold(column)][0] for word, column in wanted.items() if fold(column) in by_fold}


def fold(column: str) -> str:
    """A column name with case, spaces and underscores folded away."""
    return re.sub(r"[\s_]+", "", column).casefold()


def _shown(found: Sequence[str]) -> str:
    return ", ".join(column[:40] for column in found[:12]) + (", …" if len(found) > 12 else "")


def _missing(missing: Sequence[str], found: Sequence[str], dialect: Dialect) -> str:
    """``lacks the column 'GeneratedTokens' of the azure format (did you mean 'GeneratdTokens'?; found: …)``."""
    by_fold = {fold(column): column for column in found}
    near = [close for column in missing for close in difflib.get_close_matches(fold(column), by_fold, n=1, cutoff=0.7)]
    hint = f"is it {by_fold[near[0]][:40]!r}?; " if near else ""
    names = ", ".join(map(repr, missing))
    noun = "column" if len(missing) == 1 else "columns"
    return f"lacks the {noun} {names} of the {dialect.name} format ({hint}found: {_shown(found)})"
