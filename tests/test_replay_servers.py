"""Servers of the kinds that are about, from the command line to the figures: whatever they understand and tell, answers
are whole, lengths are those asked for or said not to be, and first tokens are first tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from simserve.cli import app
from tests.replay_server import ReplayServer

TTFT_S, ITL_S = 0.15, 0.01
TRANSFORMERS = {
    "accepts": frozenset({"stream_options"}),
    "takes_ids": False,
    "tokens_per_word": 2.0,
    "usage_of_each_event": False,
    "usage_in_last": True,
    "says_done": False,
}


@dataclass
class Kind:
    """A server by its options, and how its tokens can be told apart."""

    options: dict[str, Any]
    counting: str
    path: str = "/v1/completions"
    warnings: tuple[str, ...] = ()
    arguments: tuple[str, ...] = field(default_factory=tuple)


KINDS = {
    "vllm": Kind({}, "usage of each event"),
    "vllm, several tokens an event": Kind({"tokens_per_event": 3}, "usage of each event", warnings=("at one instant",)),
    "vllm, chat": Kind(
        {"greets": True}, "usage of each event", "/v1/chat/completions", arguments=("--endpoint", "chat")
    ),
    "sglang": Kind(
        {"accepts": frozenset({"ignore_eos", "stream_options"}), "usage_of_each_event": False},
        "one token an event, as usage confirms",
    ),
    "sglang, several tokens an event": Kind(
        {"usage_of_each_event": False, "tokens_per_event": 2},
        "usage spread over events",
        warnings=("usage spread over events", "at one instant"),
    ),
    "transformers": Kind(TRANSFORMERS, "one token an event, as usage confirms"),
    "transformers, chat": Kind(
        {**TRANSFORMERS, "only_chat": True, "greets": True, "echoes": True, "extra_prompt_tokens": 4},
        "one token an event, after one that usage does not count",
        "/v1/chat/completions",
        warnings=("after one that usage does not count",),
    ),
    "chat only, by a gateway": Kind(
        {"only_chat": True, "greets": True, "usage_of_each_event": False, "closes": True, "extra_prompt_tokens": 7},
        "one token an event, as usage confirms",
        "/v1/chat/completions",
    ),
    "one that tells nothing": Kind(
        {"accepts": frozenset(), "usage": False},
        "one token an event, as usage confirms",  # it stopped for its length: that tells how many there were
        warnings=("does not tell how many tokens prompts have",),
    ),
}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def replayed(request, tmp_path_factory):
    """Twenty requests of 24 tokens for 6 more, on a server of each kind: the kind, the document and the requests."""
    folder = tmp_path_factory.mktemp("kind")
    trace = folder / "trace.csv"
    rows = "".join(f"{time_s:.3f},24,6\n" for time_s in np.arange(20) * 0.02)
    trace.write_text("arrival_s,num_prompt_tokens,num_output_tokens\n" + rows)
    with ReplayServer(ttft_s=TTFT_S, itl_s=ITL_S, **request.param.options).in_a_thread() as server:
        arguments = [server.url, str(trace), "--out", str(folder / "out"), "--json", *request.param.arguments]
        done = CliRunner().invoke(app, ["replay", *arguments])
        assert done.exit_code == 0, done.output
    return request.param, json.loads(done.stdout), pd.read_parquet(folder / "out" / "requests.parquet")


def test_every_answer_is_whole(replayed):
    """All finish, with the six tokens that were asked for."""
    _, document, frame = replayed
    assert document["num_finished"] == 20 and document["faults"] == {}
    assert (frame["num_output_tokens"] == 6).all()
    assert document["output_lengths"]["num_short"] == document["output_lengths"]["num_long"] == 0


def test_it_is_asked_where_and_how_it_answers(replayed):
    """The endpoint that is there, and how tokens are counted stands beside each request."""
    kind, document, frame = replayed
    assert document["asked_by"].startswith(kind.path + ";")
    assert set(frame["counting"]) == {kind.counting}


def test_prompts_have_the_tokens_that_were_asked_for(replayed):
    """By ids or by words, with a template's tokens or without: 24 by the server's count, where it counts."""
    kind, document, frame = replayed
    prompts = document["prompt_tokens"]
    if kind.options.get("usage", True):
        assert prompts["counted"] == prompts["asked"] == 480 and prompts["max_error_tokens"] == 0
    else:
        assert prompts["num_counted"] == 0 and (frame["num_prompt_tokens"] == 24).all()


def test_first_tokens_are_first_tokens(replayed):
    """Neither a greeting nor an echo, which come 150 ms before there is a token, is one."""
    assert replayed[2]["ttft_s"].min() > TTFT_S - 0.001
    assert replayed[2]["ttft_s"].quantile(0.25) < TTFT_S + 0.05


def test_the_last_token_is_on_the_timetable(replayed):
    """After as many events as it takes for six tokens, and not at the end of the stream."""
    kind, _, frame = replayed
    num_events = -(-6 // kind.options.get("tokens_per_event", 1))
    due_s = TTFT_S + (num_events - 1) * ITL_S
    assert frame["e2e_s"].min() > due_s - 0.001 and frame["e2e_s"].quantile(0.25) < due_s + 0.05


def test_what_cannot_be_told_is_said(replayed):
    """The warnings of its kind, and no others but of this machine's lateness."""
    kind, document, _ = replayed
    said = [words for words in document["warnings"] if "was late" not in words]
    for words in kind.warnings:
        assert any(words in warning for warning in said), words
    slow = [warning for warning in said if not any(words in warning for words in kind.warnings)]
    assert all("at one instant" in warning for warning in slow)  # a busy machine reads two events in one piece
