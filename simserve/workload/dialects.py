"""Whose traces we read: the names of their columns, matched with case, spaces and underscores folded."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from simserve.workload.refusal import refusal

SUB_REQUESTS = "subrequests"  # folded: the key under which a JSON line holds the requests of a session
EVENTS = "timingevents"  # folded: the key of a round's events, which become the time when its input was ready


@dataclass(frozen=True)
class Dialect:
    """One family of traces: which column holds what, how time is written, and what the ids of a prompt stand for."""

    name: str
    time: Literal["datetime", "seconds", "milliseconds", "nanoseconds"]
    columns: Mapping[str, str]  # our word -> the dialect's column
    optional: Mapping[str, str] = field(default_factory=dict)
    has_gaps: bool = False  # files may lack times and prompt lengths, and rows any length
    tokens_per_id: int = 0  # of the column ``content``: 512 for the hash of such a block, 1 for a token id
    covers_prompt: bool = True  # the ids of a row stand for its whole prompt, not only for how it begins
    lengths_only: bool = False  # files may lack times, and then have an order alone
    appends: bool = False  # a prompt is what it keeps of its session and ``num_prompt_tokens`` more
    instead: Mapping[str, str] = field(default_factory=dict)  # our word -> another name, where the column is not there
    total: str = ""  # the column of prompt and output together: compared, not used
    marks: tuple[str, ...] = ()  # further columns that tell it, and are not used


AZURE = Dialect(  # Azure Public Dataset: 2023 (Splitwise, ISCA'24), 2024 (DynamoLLM, HPCA'25), multimodal 2025 (images
    # are counted in ContextTokens already)
    "azure",
    "datetime",
    {"arrival": "TIMESTAMP", "num_prompt_tokens": "ContextTokens", "num_output_tokens": "GeneratedTokens"},
)
BURSTGPT = Dialect(  # BurstGPT (KDD'25): whole seconds, so many requests share a time; no response is a failure
    "burstgpt",
    "seconds",
    {"arrival": "Timestamp", "num_prompt_tokens": "Request tokens", "num_output_tokens": "Response tokens"},
    {"session": "Session ID"},  # the second version has it, and the elapsed time of the answer
    total="Total tokens",
    marks=("Log Type",),
)
VIDUR = Dialect(  # Vidur (MLSys'24); its processed traces are lengths without times
    "vidur",
    "seconds",
    {"arrival": "arrived_at", "num_prompt_tokens": "num_prefill_tokens", "num_output_tokens": "num_decode_tokens"},
    lengths_only=True,
    total="num_total_tokens",
)
SPLITWISE = Dialect(  # splitwise-sim (ISCA'24)
    "splitwise",
    "seconds",
    {"arrival": "arrival_timestamp", "num_prompt_tokens": "prompt_size", "num_output_tokens": "token_size"},
)
SIMSERVE = Dialect(  # prefix_hashes: one hash per prefix_block_tokens (16) tokens, as far as a prompt is known; wait_s:
    # from the answer before it in its session, where a request has no time of its own; kept_tokens: how many tokens of
    # the prompt and answer before it there a prompt begins with; prefix_id, prefix_tokens: prompts of one id begin with
    # the same text, each with so many tokens of it
    "simserve",
    "seconds",
    {"arrival": "arrival_s", "num_prompt_tokens": "num_prompt_tokens", "num_output_tokens": "num_output_tokens"},
    {
        "max_output_tokens": "max_output_tokens",
        "priority": "priority",
        "session": "session_id",
        "wait_before": "wait_s",
        "tenant": "tenant",
        "kept": "kept_tokens",
        "prefix": "prefix_id",
        "prefix_tokens": "prefix_tokens",
        "content": "prefix_hashes",
        "block_tokens": "prefix_block_tokens",
    },
    tokens_per_id=16,
    covers_prompt=False,
)
MOONCAKE = Dialect(  # Mooncake (FAST'25); the last hash of a prompt stands for a partial block
    "mooncake",
    "milliseconds",
    {"arrival": "timestamp", "num_prompt_tokens": "input_length", "num_output_tokens": "output_length"},
    {"content": "hash_ids"},
    has_gaps=True,
    tokens_per_id=512,
)
BAILIAN = replace(  # Qwen's Bailian traces: Mooncake's keys in other units, and who talks to whom
    MOONCAKE,
    name="bailian",
    time="seconds",
    optional={"content": "hash_ids", "chat": "chat_id", "parent": "parent_chat_id"},
    tokens_per_id=16,
    marks=("chat_id", "parent_chat_id"),
)
LLMSERVINGSIM = Dialect(  # LLMServingSim's requests, and its sessions, whose requests wait for the answer before them
    "llmservingsim",
    "nanoseconds",
    {"arrival": "arrival_time_ns", "num_prompt_tokens": "input_toks", "num_output_tokens": "output_toks"},
    {"content": "input_tok_ids", "session": "session_id", "turn": "sub_request", "wait_after": "tool_duration_ns"},
    tokens_per_id=1,
)
TRACELAB = Dialect(  # TraceLab's session runner: a row per round, whose prompt is what it keeps and what it appends
    "tracelab",
    "milliseconds",
    {
        "session": "session_id",
        "turn": "round_idx",
        "kept": "prefix_len",
        "num_prompt_tokens": "input_len",
        "num_output_tokens": "output_len",
    },
    {"arrival": "arrival_time", "wait_after": "tool_wait_after_ms"},
    appends=True,
    instead={"session": "id"},  # as its runner reads it
)
TRACELAB_LOG = Dialect(  # TraceLab's published rounds of coding agents, with the times at which their inputs were ready
    "tracelab_log",
    "datetime",
    {"arrival": "timing_events", "num_prompt_tokens": "input_tokens_total", "num_output_tokens": "output_tokens"},
    {"session": "session_id"},
)
_ALL = (AZURE, SIMSERVE, MOONCAKE, BAILIAN, LLMSERVINGSIM, BURSTGPT, VIDUR, SPLITWISE, TRACELAB, TRACELAB_LOG)
DIALECTS = {dialect.name: dialect for dialect in _ALL}


def choose_dialect(found: Sequence[str], name: str, where: str) -> Dialect:
    """The dialect called ``name``, or for ``auto`` the one that the columns fit best. Raises TraceError when they fit
    none by at least two of its columns."""
    if name != "auto":
        return DIALECTS[name]
    folded = {fold(column) for column in found}
    hits = {each.name: sum(fold(column) in folded for column in _tell(each)) for each in DIALECTS.values()}
    best = max(hits, key=hits.__getitem__)
    if hits[best] < 2:
        known = "; ".join(f"{each.name} ({', '.join(each.columns.values())})" for each in DIALECTS.values())
        raise refusal(where, f"must have the columns of a known format: {known} (found: {_shown(found)})")
    return DIALECTS[best]


def _tell(dialect: Dialect) -> tuple[str, ...]:
    """The columns that tell a dialect from others; of what is optional only the ids, for everybody has priorities."""
    ids = (dialect.optional["content"],) if "content" in dialect.optional else ()
    return (*dialect.columns.values(), *ids, *dialect.marks)


def match_columns(found: Sequence[str], dialect: Dialect, where: str) -> dict[str, str]:
    """Our word -> the file's own column name. Raises TraceError naming what is missing, or stands twice."""
    by_fold: dict[str, list[str]] = {}
    for column in found:
        by_fold.setdefault(fold(column), []).append(column)
    may_lack = _may_lack(dialect, set(by_fold))
    wanted = {**dialect.columns, **dialect.optional, **({"total": dialect.total} if dialect.total else {})}
    for word, other in dialect.instead.items():
        if fold(wanted[word]) not in by_fold and fold(other) in by_fold:
            wanted[word] = other
    required = {word: name for word, name in dialect.columns.items() if word not in may_lack}
    missing = [name for word, name in required.items() if fold(wanted[word]) not in by_fold]
    if missing:
        raise refusal(where, _missing(missing, found, dialect))
    for column in wanted.values():
        if len(by_fold.get(fold(column), [])) > 1:
            twice = " and ".join(map(repr, by_fold[fold(column)]))
            raise refusal(where, f"must have one column {column!r} (got {twice})")
    return {word: by_fold[fold(column)][0] for word, column in wanted.items() if fold(column) in by_fold}


def _may_lack(dialect: Dialect, folded: Set[str]) -> set[str]:
    """Our words for the columns that a file may do without: times (a closed loop needs none), and prompt lengths where
    the number of blocks tells them."""
    if not dialect.has_gaps:
        return {"arrival"} if dialect.lengths_only else set()
    return {"arrival", "num_prompt_tokens"} if fold(dialect.optional["content"]) in folded else {"arrival"}


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
