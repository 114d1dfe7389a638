"""Shared beginnings as two columns of our own traces, ``prefix_id`` and ``prefix_tokens``: prompts with one id begin
with the same text, each with as many tokens of it as it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from simserve.request import Content, IntColumn, Ranges
from simserve.workload.columns import Column
from simserve.workload.content import parts, ranges_of
from simserve.workload.refusal import refusal


def prefix_columns(
    columns: dict[str, Column], num_prompt_tokens: IntColumn, has_hashes: bool, notes: list[str]
) -> dict[str, IntColumn]:
    """What a trace tells, with ids numbered from 0; nothing where it has no such columns, or says more by hashes.
    Raises TraceError where one lacks the other, or naming the first row that begins with more tokens than it has."""
    found = [columns[word] for word in ("prefix", "prefix_tokens") if word in columns]
    if len(found) < 2:
        if found:
            raise refusal(found[0].where, f"must have prefix_id and prefix_tokens together (got {found[0].name} alone)")
        return {}
    ids, tokens = found
    if has_hashes:
        notes.append(f"{ids.name} not used: {columns['content'].name} says what prompts share")
        return {}
    num_tokens = np.where(ids.is_missing(), 0, tokens.whole_numbers(missing=0))
    tokens.refuse_unless(num_tokens <= num_prompt_tokens, "must be at most the tokens of its prompt")
    return {"prefix": pd.factorize(ids.text())[0].astype(np.int64), "prefix_tokens": num_tokens}


def prefixes_of(frame: pd.DataFrame) -> Ranges | None:
    """The content of rows with these columns; None without them."""
    if "prefix" not in frame:
        return None
    return ranges_of(frame["prefix"].to_numpy(), frame["prefix_tokens"].to_numpy())


def only_begin_alike(content: Content | Ranges | None, num_prompt_tokens: IntColumn) -> bool:
    """Whether all that is known are beginnings of prompts; what turns hold of answers before them goes on beyond."""
    return isinstance(content, Ranges) and bool((content.num_tokens <= num_prompt_tokens).all())


def told_of_prefixes(
    content: Content | Ranges | None, num_prompt_tokens: IntColumn, keeps_told: bool
) -> dict[str, Any]:
    """The two columns for requests of known beginnings. Ids are numbered from 0 by first appearance, null where nothing
    is known. With ``keeps_told`` other columns say what turns hold of those before them, and these what leads
    conversations; without, how far prompts begin alike."""
    if not isinstance(content, Ranges):
        return {}
    own, lead = parts(content)
    is_led = (lead.num_tokens > 0) & keeps_told
    is_told = keeps_told & (own.num_tokens > num_prompt_tokens)  # it goes on with its answer
    first = np.where(is_led, lead.first, own.first)
    num_tokens = np.where(is_led, lead.num_tokens, np.where(is_told, 0, np.minimum(own.num_tokens, num_prompt_tokens)))
    is_known = num_tokens > 0
    if keeps_told and not is_known.any():
        return {}
    ids = pd.array(np.zeros(len(first), np.int64), dtype="Int64")
    ids[is_known] = pd.factorize(first[is_known])[0]
    ids[~is_known] = pd.NA
    return {"prefix_id": ids, "prefix_tokens": num_tokens}
