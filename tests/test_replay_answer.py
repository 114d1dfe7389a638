"""What a stream's events say: tokens counted by usage and never by events alone, or said to be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.replay.answer import Answer
from simserve.replay.errors import BrokenAnswer


def _event(text: str = "x", told: int | None = None, **more: object) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": more.pop("reason", None)}
    event: dict[str, object] = {"choices": [choice]}
    if told is not None:
        event["usage"] = {"prompt_tokens": 7, "completion_tokens": told}
    return f"data: {json.dumps(event | more)}\n\n".encode()


def _usage(told: int) -> bytes:
    return f"data: {json.dumps({'choices': [], 'usage': {'prompt_tokens': 7, 'completion_tokens': told}})}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def _answer(*events: bytes, asked: int = 8) -> Answer:
    """An answer whose n-th event arrived at n seconds."""
    answer = Answer(asked)
    for second, event in enumerate(events, 1):
        answer.take(event, float(second))
    answer.end(float(len(events)))
    return answer


def test_usage_of_each_event_counts():
    """Three events that say 1, 4 and 5 tokens are just that, whatever their texts."""
    tokens = _answer(_event(told=1), _event("xyz", told=4), _event("", told=5, reason="length"), DONE).tokens()
    assert tokens == ([1.0, 2.0, 3.0], [1, 4, 5], "usage of each event")


def test_events_are_tokens_where_usage_confirms_it():
    """As many events as the usage at the end has tokens."""
    tokens = _answer(_event(), _event(), _event(reason="length"), _usage(3), DONE).tokens()
    assert tokens == ([1.0, 2.0, 3.0], [1, 2, 3], "one token an event, as usage confirms")


def test_greeting_and_farewell_are_no_tokens():
    """An empty first event (a chat's role) and an empty last one (why it ended) are passed over."""
    tokens = _answer(_event(""), _event(), _event(), _event("", reason="length"), _usage(2), DONE).tokens()
    assert tokens == ([2.0, 3.0], [1, 2], "one token an event, as usage confirms")


def test_greeting_and_farewell_are_no_tokens_where_nothing_fits_either():
    """Five tokens in two events with text (some decode to nothing): TTFT is the first text's, not the greeting's."""
    tokens = _answer(_event(""), _event(), _event(), _event("", reason="length"), _usage(5), DONE).tokens()
    assert tokens == ([2.0, 3.0], [3, 5], "usage spread over events")


def test_a_token_without_text_may_be_the_first():
    """As many events as tokens: none of them is a greeting, whatever its text."""
    tokens = _answer(_event(""), _event(), _event(reason="length"), _usage(3), DONE).tokens()
    assert tokens.times_s == [1.0, 2.0, 3.0]


def test_whose_turn_it_is_is_no_token():
    """A chat begins with its role, long before the first token; with usage for as many tokens as there are events."""
    role = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}\n\n'
    said = b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": null}]}\n\n'
    tokens = _answer(role, said, said, _usage(3), DONE).tokens()
    assert tokens.times_s[0] == 2.0 and tokens.counts[-1] == 3


def test_an_echo_of_the_prompt_is_no_token():
    """transformers' chat sends the prompt back first: one event more than usage counts, so the second is the first
    token, and the counting says so."""
    tokens = _answer(_event("the prompt"), _event(), _event(), _event("", reason="length"), _usage(2), DONE).tokens()
    assert tokens == ([2.0, 3.0], [1, 2], "one token an event, after one that usage does not count")


def test_more_tokens_than_events_are_spread():
    """Six tokens over three events are two each, and said to be spread."""
    tokens = _answer(_event(), _event(), _event(reason="length"), _usage(6), DONE).tokens()
    assert tokens == ([1.0, 2.0, 3.0], [2, 4, 6], "usage spread over events")


def test_without_usage_a_token_an_event_is_an_assumption():
    """Nothing tells: each event with text is taken for a token, and the counting says that it is assumed."""
    tokens = _answer(_event(), _event(), _event("", reason="stop"), DONE).tokens()
    assert tokens == ([1.0, 2.0], [1, 2], "one token an event, assumed")


def test_a_stop_by_length_tells_the_count():
    """Without usage, an answer that ended for its length has as many tokens as were asked for."""
    assert _answer(_event(), _event(reason="length"), DONE, asked=6).tokens().counts == [3, 6]


def test_chat_and_thoughts_count_as_text():
    """A chat's delta and a reasoning model's thoughts begin an answer as text does."""
    for delta in ({"content": "x"}, {"reasoning_content": "x"}, {"reasoning": "x"}):
        answer = Answer(4)
        answer.take(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n".encode(), 1.0)
        assert answer.has_begun
    silent = Answer(4)
    silent.take(b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n', 1.0)
    assert not silent.has_begun


@given(st.lists(st.tuples(st.sampled_from(["", "x"]), st.none() | st.integers(0, 30)), max_size=12), st.booleans())
def test_counts_rise_and_times_too(events, with_usage):
    """However usage and text come, counts rise strictly with the events, and a told total is never exceeded."""
    total = 30
    said = [_event(text, told) for text, told in events]
    tokens = _answer(*said, *[_usage(total)] * with_usage, DONE, asked=64).tokens()
    assert tokens.counts == sorted(set(tokens.counts)) and all(count > 0 for count in tokens.counts)
    assert tokens.times_s == sorted(tokens.times_s) and len(tokens.times_s) == len(tokens.counts)
    if with_usage and tokens.counting != "one token an event, assumed":
        assert not tokens.counts or tokens.counts[-1] <= total


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([b"data: {not json\n\n"], "not JSON"),
        ([b"data: 17\n\n"], "not a JSON object"),
        ([b'data: {"error": {"message": "out of\\n cake"}}\n\n'], "an error in its stream: out of cake"),
        ([_event(), _event()], r"ends without \[DONE\]"),
        ([_event()] * 33, "more events than the tokens"),
        ([b"data: " + b"[" * 100_000 + b"\n\n"], "not JSON"),
    ],
)
def test_what_is_no_completion_is_said(events, said):
    """Garbage, errors in the stream, a missing end, and more events than 2·8 + 16 for 8 tokens."""
    with pytest.raises(BrokenAnswer, match=said):
        _answer(*events)


@pytest.mark.parametrize("usage", ["many", {"completion_tokens": "3"}, {"completion_tokens": True}, [], {}])
def test_a_usage_that_means_nothing_is_no_usage(usage):
    """Counts that are no counts are passed over."""
    tokens = _answer(_event(), f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode(), DONE).tokens()
    assert tokens.counting == "one token an event, assumed"


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"content-type": "text/html; charset=utf-8"}, "text/html instead of a stream"),
        ({"content-type": "application/json"}, "application/json instead of a stream"),
        ({"content-type": "text/event-stream", "content-encoding": "gzip"}, "compressed"),
    ],
)
def test_what_is_no_stream_is_said(headers, said):
    """An answer of another kind is not waited for."""
    with pytest.raises(BrokenAnswer, match=said):
        Answer(4).head(headers)


def test_a_stream_may_come_without_a_type():
    """Some servers name none."""
    Answer(4).head({})
    Answer(4).head({"content-type": "text/event-stream; charset=utf-8"})
