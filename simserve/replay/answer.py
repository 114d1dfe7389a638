"""What a stream's events say: when tokens came, how many there were, and why it ended; no input or output."""

from __future__ import annotations

import json
from array import array
from typing import Any

from simserve.replay.errors import BrokenAnswer
from simserve.replay.sse import EventParser
from simserve.replay.token_counts import TokenTimes, count_tokens
from simserve.replay.words import one_line

_MORE_EVENTS = 16  # greetings, farewells and empty ones, beside twice the tokens
_UNTOLD = -1
_TEXTS = ("content", "reasoning_content", "reasoning")


class Answer:
    """One streaming completion, of chat or of text, for ``num_asked`` output tokens; a sink of ``Exchange``."""

    def __init__(self, num_asked: int) -> None:
        self.finish_reason = ""
        self.usage: dict[str, Any] = {}
        self._num_asked = num_asked
        self._parser = EventParser()
        self._done = False
        self._times = array("d")  # of each event that has a choice
        self._counts = array("q")  # output tokens by then, as its own usage says
        self._has_text = bytearray()
        self._is_last = bytearray()

    @property
    def has_begun(self) -> bool:
        """Whether a first token may have come: an event with text, or with any choice but an empty first one."""
        return any(self._has_text) or len(self._times) > 1

    @property
    def num_prompt_tokens(self) -> int | None:
        """The prompt's tokens as the server counted them."""
        return count_in(self.usage, "prompt_tokens")

    def head(self, headers: dict[str, str]) -> None:
        """Raises BrokenAnswer unless the headers announce a stream of events (or nothing at all)."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("", "text/event-stream"):
            raise BrokenAnswer(f"an answer of type {one_line(kind)} instead of a stream of events")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise BrokenAnswer("a compressed stream, which was not asked for")

    def take(self, body: bytes, now_s: float) -> bool:
        """Bytes of the body that arrived at ``now_s``; whether the stream has said that it is done. Raises
        BrokenAnswer for what is no event of a completion, and for an error that the server put into the stream."""
        for data in self._parser.feed(body):
            self._event(data, now_s)
        return self._done

    def end(self, now_s: float) -> None:
        """The body has ended. Raises BrokenAnswer unless the stream said ``[DONE]`` or why it finished."""
        if not self._done:
            for data in self._parser.end():
                self._event(data, now_s)
        if not self._done and not self.finish_reason:
            raise BrokenAnswer("a stream that ends without [DONE]")

    def tokens(self) -> TokenTimes:
        """Times of the events that brought tokens, and the tokens there were by then; also of an unfinished stream."""
        told = count_in(self.usage, "completion_tokens")
        if told is None and self.finish_reason == "length":
            told = self._num_asked  # it stopped because it had that many
        return count_tokens(self._times, self._counts, self._has_text, self._is_last, told)

    def _event(self, data: bytes, now_s: float) -> None:
        if self._done:
            return
        if data == b"[DONE]":
            self._done = True
            return
        event = _parse(data)
        usage = event.get("usage")
        told = usage if isinstance(usage, dict) else None
        self.usage = told or self.usage
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return
        if len(self._times) >= 2 * self._num_asked + _MORE_EVENTS:
            raise BrokenAnswer("more events than the tokens that were asked for")
        choice, reason = choices[0], choices[0].get("finish_reason")
        if not self._times and _is_greeting(choice):
            return
        if isinstance(reason, str) and reason:
            self.finish_reason = one_line(reason)
        count = count_in(told, "completion_tokens") if told else None
        self._times.append(now_s)
        self._counts.append(_UNTOLD if count is None else count)
        self._has_text.append(_has_text(choice))
        self._is_last.append(reason is not None)


def count_in(usage: dict[str, Any], name: str) -> int | None:
    """A count that a usage tells; None for anything that is none."""
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _parse(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise BrokenAnswer("an event that is not JSON") from None
    if not isinstance(event, dict):
        raise BrokenAnswer("an event that is not a JSON object")
    if event.get("error"):
        raise BrokenAnswer(f"an error in its stream: {one_line(_said(event['error']))}")
    return event


def _said(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else json.dumps(error)


def _is_greeting(choice: dict[str, Any]) -> bool:
    """Whether a chat's first event only says whose turn it is: servers send it before there is a token."""
    delta = choice.get("delta")
    return isinstance(delta, dict) and "role" in delta and not _has_text(choice) and choice.get("finish_reason") is None


def _has_text(choice: dict[str, Any]) -> bool:
    """Whether a choice brings text: ``text`` of a completion, ``delta`` of a chat (thoughts are tokens too)."""
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(delta.get(name) for name in _TEXTS)
