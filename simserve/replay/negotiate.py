"""Find out, before the load, what a server understands: from the most that helps to the least that will do.

A handful of short requests. A server that answers none of them as it should is still put under load, in vLLM's dialect
and with a note: that is how one that is broken gets its faults counted. Only one that cannot be reached, or that has no
such endpoint, model or user, is the input's fault.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import numpy as np

from simserve.replay.answer import Answer
from simserve.replay.connection import Connection
from simserve.replay.dialect import FORCED, TOKEN_IDS, USAGE, USAGE_OF_EACH_EVENT, Dialect, Endpoint
from simserve.replay.errors import BrokenAnswer, Refused, ReplayError
from simserve.replay.exchange import Exchange, GaveUp, Limits
from simserve.replay.fetch import fetch_json
from simserve.replay.pool import Pool
from simserve.replay.server import Server

_LADDER = (
    (FORCED, USAGE_OF_EACH_EVENT),
    (FORCED, USAGE),
    (("ignore_eos",), USAGE),
    ((), USAGE),
    ((), ()),
)
_PROBE = 16  # tokens of the shortest prompt
_TRIES = 3
_PAUSE_S = 0.3
_MAX_PAUSE_S = 5.0
_PROBE_WITHIN_S = 60.0
_NOT_OURS = (401, 403, 404, 405)


class Unanswered(Exception):
    """No try brought a whole answer; why the last one did not."""


@dataclass(frozen=True)
class Agreed:
    """What was found out: how to ask, and what a reader should know about it."""

    dialect: Dialect
    notes: tuple[str, ...] = ()


class Negotiator:
    """Asks one server short questions, one after another."""

    def __init__(self, pool: Pool, server: Server, rng: np.random.Generator) -> None:
        self._pool, self._server, self._rng = pool, server, rng

    async def model_id(self) -> str:
        """The only model that the server lists. Raises ReplayError."""
        where = f"{self._server.address}/v1/models"
        try:
            listed = await fetch_json(self._pool, self._server, "/v1/models")
            names = [model["id"] for model in listed["data"] if isinstance(model["id"], str)]
        except Refused as refused:
            rule = "must accept our key; give it with --api-key" if refused.status in (401, 403) else _LISTS
            raise ReplayError(f"{where}: {rule} (got {self._server.scrub(str(refused))})") from None
        except (BrokenAnswer, GaveUp) as error:
            raise ReplayError(f"{where}: {_LISTS} (got {self._server.scrub(str(error))})") from None
        except (TypeError, KeyError):
            names = []
        if len(names) != 1:
            raise ReplayError(f"{where}: must list one model, or --served-model name one (got {len(names)})")
        return str(names[0])

    async def agree(self, model_id: str, endpoint: Endpoint | None, token_ids: tuple[int, int] = TOKEN_IDS) -> Agreed:
        """The richest dialect that the server answers to; ``endpoint`` None tries completions, then chat. Raises
        ReplayError when there is no such endpoint or model, or our key is not good, or nobody is there."""
        first = Dialect(model_id, endpoint or "completions")
        try:
            dialect, answer = await self._climb_down(first, can_chat=endpoint is None)
            notes = _on_lengths(answer, dialect)
            if dialect.endpoint == "completions":
                by_ids = await self._with_ids(dialect, token_ids)
                if by_ids is not None:
                    return Agreed(by_ids, notes)
            gauged, more = await self._gauged(dialect)
            return Agreed(gauged, notes + more)
        except Unanswered as error:
            said = f"no probe was answered as it should be ({error}); asked as vLLM understands it"
            ids = token_ids if first.endpoint == "completions" else None
            return Agreed(replace(first, token_ids=ids), (said,))

    async def _climb_down(self, dialect: Dialect, can_chat: bool) -> tuple[Dialect, Answer]:
        refusal: Refused | None = None
        for forced, options in _LADDER:
            asked = replace(dialect, forced=forced, stream_options=options)
            try:
                return asked, await self._ask(asked, _PROBE)
            except Refused as error:
                refusal = error
                if error.status in _NOT_OURS:
                    break
        assert refusal is not None
        if can_chat and refusal.status in (404, 405):
            return await self._climb_down(replace(dialect, endpoint="chat"), can_chat=False)
        said = self._server.scrub(str(refusal))
        raise ReplayError(f"{self._server.address}{dialect.path}: {_remedy(refusal.status)} (got {said})")

    async def _with_ids(self, dialect: Dialect, token_ids: tuple[int, int]) -> Dialect | None:
        """Prompts of ids, if the server takes them for what they are."""
        asked = replace(dialect, token_ids=token_ids)
        try:
            told = (await self._ask(asked, _PROBE)).num_prompt_tokens
        except (Refused, Unanswered):
            return None
        if told is None:
            return asked
        more = told - _PROBE  # a server may add a begin-of-text token or two
        return replace(asked, offset=float(more)) if 0 <= more <= 4 else None

    async def _gauged(self, dialect: Dialect) -> tuple[Dialect, tuple[str, ...]]:
        """Tokens per word and offset, from prompts of 16 and 64 words, checked on one of 128."""
        lengths = (_PROBE, 4 * _PROBE, 8 * _PROBE)
        try:
            first, second, third = [(await self._ask(dialect, units)).num_prompt_tokens for units in lengths]
        except Refused as error:
            raise Unanswered(self._server.scrub(str(error))) from None
        if first is None or second is None or third is None:
            return dialect, ("no usage tells how long prompts are: taken for one token a word",)
        slope = (second - first) / (lengths[1] - lengths[0])
        offset = first - slope * lengths[0]
        if slope <= 0:
            return dialect, (f"prompts of {lengths} words have {(first, second, third)} tokens: lengths are not ours",)
        gauged = replace(dialect, tokens_per_unit=slope, offset=offset)
        miss = offset + slope * lengths[2] - third
        if abs(miss) > max(2.0, 0.02 * third):
            return gauged, (f"tokens of a prompt are not proportional to its words: off by {miss:.0f} in {third}",)
        return gauged, ()

    async def _ask(self, dialect: Dialect, units: int) -> Answer:
        """The answer to a prompt of so many units. Raises Refused for a status that another try will not change,
        Unanswered, or ReplayError when there is no server at all."""
        plain = replace(dialect, tokens_per_unit=1.0, offset=0.0)
        for number in range(_TRIES):
            answer = Answer(_PROBE)
            request = self._server.post(dialect.path, plain.body(units, _PROBE, self._rng))
            try:
                connection = await self._connect()
                await Exchange(connection, answer, Limits(_PROBE_WITHIN_S)).run(request)
                return answer
            except Refused as error:
                if error.status not in (408, 425, 429) and error.status < 500:
                    raise
                why, pause_s = str(error), max(_PAUSE_S, error.retry_after_s)
            except BrokenAnswer as error:
                why, pause_s = str(error), _PAUSE_S
            except GaveUp as error:
                raise Unanswered(str(error)) from None  # another try would mostly wait as long again
            if number + 1 < _TRIES:
                await asyncio.sleep(min(pause_s, _MAX_PAUSE_S))
        raise Unanswered(self._server.scrub(why))

    async def _connect(self) -> Connection:
        try:
            return await self._pool.take(self._pool.lease())
        except BrokenAnswer as error:
            raise ReplayError(f"{self._server.address}: must be a server that runs (got {error})") from None


_LISTS = "must list the models, or --served-model name one"


def _remedy(status: int) -> str:
    if status in (401, 403):
        return "must accept our key; give it with --api-key"
    if status in (404, 405):
        return "must be there, and serve the model that --served-model names"
    return "must answer a plain streaming completion"


def _on_lengths(answer: Answer, dialect: Dialect) -> tuple[str, ...]:
    counts = answer.tokens().counts
    got = counts[-1] if counts else 0
    if got == _PROBE:
        return ()
    fields = " and ".join(dialect.forced) or "nothing to force them"
    return (f"output lengths are not forced: {_PROBE} tokens asked for with {fields}, {got} came",)
