"""Random streams of a scenario's seed: one for each thing that is drawn, so that drawing one more changes no other."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

# A stream is known by its place here: append, never reorder, or every scenario gets other requests.
Stream = Literal[
    "arrivals",
    "prompt_tokens",
    "output_tokens",
    "think_time",
    "who_cancels",
    "cancel_time",
    "retry_jitter",
    "resample",
    "length_ties",
    "length_pairs",
    "shared_prefixes",
    "session_turns",
    "session_new_tokens",
    "session_think_time",
]


def stream(seed: int, what: Stream, *index: int) -> np.random.Generator:
    """The generator of one stream, or of one of its numbered parts: a child of the seed's ``SeedSequence``."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(get_args(Stream).index(what), *index)))
