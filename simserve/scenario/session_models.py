"""``workload.sessions:`` of a scenario: requests as turns of conversations, whose prompts hold all that was said."""

from __future__ import annotations

from pydantic import Field

from simserve.scenario.client_models import ThinkTimeConfig
from simserve.scenario.fields import Strict, Tokens
from simserve.scenario.length_models import LengthsConfig


class SessionsConfig(Strict):
    """Requests are turns of sessions. ``prompt_tokens`` are those of first turns; the prompt of every later one is the
    prompt and the answer before it and some new tokens, so engines with prefix_caching find what they still hold.
    ``arrivals`` are those of sessions; with ``concurrency`` so many clients play one session after the other."""

    turns: LengthsConfig = Field(description="distribution of the requests in a session, 1 or more")
    new_tokens: LengthsConfig | None = Field(
        None, description="what each turn after the first adds to its context, tokens; null: as prompt_tokens"
    )
    think_time_s: ThinkTimeConfig | None = Field(
        None, description="from an answer to the next turn of its session; null: no time at all, as of an agent"
    )
    max_prompt_tokens: Tokens | None = Field(
        None, description="a session ends before a later turn whose prompt would be longer than this (null: never)"
    )
