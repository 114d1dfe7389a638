"""What a server understands is found out beforehand, and what it does not is said."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.replay.address import parse_address
from simserve.replay.dialect import FORCED, USAGE_OF_EACH_EVENT, Beginning, Dialect
from simserve.replay.errors import ReplayError
from simserve.replay.negotiate import Agreed, Negotiator
from simserve.replay.pool import Pool
from simserve.replay.server import Server
from simserve.request import Chain
from tests.replay_server import ReplayServer

FAST = {"ttft_s": 0.0, "itl_s": 0.0}


def _agreed(server: ReplayServer, endpoint=None, key=None) -> Agreed:
    async def run() -> Agreed:
        async with asyncio.timeout(30), server.serve():
            asked = Server(parse_address(server.url), key)
            pool = Pool(asked.address)
            try:
                negotiator = Negotiator(pool, asked, np.random.default_rng(0))
                return await negotiator.agree(await negotiator.model_id(), endpoint)
            finally:
                pool.close()

    return asyncio.run(run())


def test_the_most_that_helps():
    """A server like vLLM: token ids, forced lengths, usage with each event."""
    agreed = _agreed(ReplayServer(**FAST))
    assert agreed.notes == ()
    dialect = agreed.dialect
    assert (dialect.endpoint, dialect.forced, dialect.stream_options) == ("completions", FORCED, USAGE_OF_EACH_EVENT)
    assert dialect.token_ids == (260, 1000) and dialect.units(77) == 77


@pytest.mark.parametrize(
    ("accepts", "forced"),
    [
        ({"ignore_eos", "stream_options"}, ("ignore_eos",)),
        ({"stream_options"}, ()),
        (set(), ()),
    ],
)
def test_fields_that_it_refuses_are_left_out(accepts, forced):
    """Down to a bare completion, for a server that answers 422 to any other field."""
    dialect = _agreed(ReplayServer(accepts=frozenset(accepts), **FAST)).dialect
    assert dialect.forced == forced
    assert bool(dialect.stream_options) == ("stream_options" in accepts)


def test_words_are_gauged_where_ids_are_not_taken():
    """1.5 tokens a word and 3 more: a prompt of 303 tokens is then one of 200 words."""
    server = ReplayServer(takes_ids=False, tokens_per_word=1.5, extra_prompt_tokens=3, **FAST)
    agreed = _agreed(server)
    assert agreed.dialect.token_ids is None and agreed.notes == ()
    assert agreed.dialect.units(303) == 200


def test_chat_where_there_are_no_completions():
    """404 on completions, so messages go to the chat endpoint, in words, its template's tokens counted."""
    agreed = _agreed(ReplayServer(only_chat=True, extra_prompt_tokens=9, **FAST))
    assert agreed.dialect.path == "/v1/chat/completions"
    assert agreed.dialect.units(109) == 100


def test_an_output_length_that_is_not_forced_is_said():
    """A server that takes the fields and stops after 5 tokens all the same."""
    [note] = _agreed(ReplayServer(stops_after=5, **FAST)).notes
    assert "16 tokens asked for with ignore_eos and min_tokens, 5 came" in note


def test_prompts_of_unknown_length_are_said():
    """No usage at all, and no token ids: a word is taken for a token."""
    agreed = _agreed(ReplayServer(takes_ids=False, usage=False, **FAST))
    assert any("taken for one token a word" in note for note in agreed.notes)
    assert agreed.dialect.units(50) == 50


@pytest.mark.parametrize("fault", [500, 429, "reset", "garbage", "no stream", "not http", "half a chunk"])
def test_a_broken_server_is_asked_as_vllm_is(fault):
    """Probes that fail do not keep the load from going: that is how its faults get counted."""
    agreed = _agreed(ReplayServer(always=fault, faulty_probes=True, retry_after="0", **FAST))
    assert agreed.dialect.forced == FORCED and agreed.dialect.token_ids is not None
    assert "no probe was answered" in agreed.notes[0]


def test_a_probe_that_fails_once_is_asked_again():
    """One 503 among the probes, and the dialect is the same as without it."""
    server = ReplayServer(faults=[503], faulty_probes=True, **FAST)
    assert _agreed(server) == _agreed(ReplayServer(**FAST))


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (ReplayServer(models=("a", "b")), r"/v1/models: must list one model, or --served-model name one \(got 2\)"),
        (ReplayServer(models=()), r"must list one model, or --served-model name one \(got 0\)"),
        (ReplayServer(key="secret"), r"must accept our key; give it with --api-key \(got HTTP 401"),
        (ReplayServer(always=404, faulty_probes=True), r"/v1/chat/completions: must be there"),
        (ReplayServer(always=400, faulty_probes=True), r"must answer a plain streaming completion \(got HTTP 400"),
    ],
)
def test_what_is_the_input_s_fault(server, said):
    """No such model, key or endpoint: one sentence, before anything is sent."""
    with pytest.raises(ReplayError, match=said):
        _agreed(server)


def test_the_key_is_sent_and_never_repeated():
    """The right key opens; a wrong one, which this server repeats, is not in the message."""
    assert _agreed(ReplayServer(key="secret", **FAST), key="secret").dialect.model_id == "tiny"
    with pytest.raises(ReplayError) as error:
        _agreed(ReplayServer(key="secret", **FAST), key="wr0ng-one")
    assert "wr0ng-one" not in str(error.value) and "401" in str(error.value)


@given(st.integers(1, 5000), st.floats(0.2, 4.0), st.floats(0, 50))
def test_units_come_closest(num_prompt, slope, offset):
    """No other whole number of words is nearer to the tokens asked for."""
    dialect = Dialect("m", tokens_per_unit=slope, offset=offset)
    units = dialect.units(num_prompt)

    def miss(n: int) -> float:
        return abs(offset + slope * n - num_prompt)

    assert units >= 1 and miss(units) <= miss(units + 1) + 1e-9
    assert units == 1 or miss(units) <= miss(units - 1) + 1e-9


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from(["completions", "chat"]))
def test_bodies_are_json_of_the_length_asked_for(num_prompt, num_output, endpoint):
    """What is sent is valid JSON with the prompt's units and the output's tokens, and no two prompts begin alike."""
    ids = (260, 1000) if endpoint == "completions" else None
    dialect, rng = Dialect("m\n\"'é", endpoint, token_ids=ids), np.random.default_rng(0)
    body = json.loads(dialect.body(num_prompt, num_output, rng))
    prompt = body["prompt"] if ids else body["messages"][0]["content"].split()
    assert len(prompt) == num_prompt
    assert body["max_tokens"] == body["min_tokens"] == num_output
    assert body["model"] == "m\n\"'é" and body["stream"] is True and body["ignore_eos"] is True


def test_prompts_share_no_beginning():
    """No prefix cache may know a prompt: among 1,000 of 16 ids no two have the same first four."""
    dialect, rng = Dialect("m", token_ids=(260, 1000)), np.random.default_rng(0)
    firsts = {tuple(json.loads(dialect.body(16, 1, rng))["prompt"][:4]) for _ in range(1000)}
    assert len(firsts) == 1000


def _prompt(dialect, chain, num_prompt=20, salt=1, seed=0):
    if chain is not None and not isinstance(chain, Chain):
        chain = Chain(chain, 4)
    beginning = None if chain is None else Beginning(chain, salt)
    body = json.loads(dialect.body(num_prompt, 1, np.random.default_rng(seed), beginning))
    return body["prompt"] if dialect.token_ids else body["prompt"].split()


@pytest.mark.parametrize("ids", [(260, 1000), None], ids=["token ids", "words"])
def test_prompts_begin_alike_where_the_trace_s_do(ids):
    """Blocks of four tokens: equal names are equal text from the start on, the rest of each prompt is its own, and
    another replay (another salt) has other text for the same names."""
    dialect = Dialect("m", token_ids=ids)
    one, other = _prompt(dialect, [0, 1, 2], seed=1), _prompt(dialect, [0, 1, 3], seed=2)
    assert len(one) == len(other) == 20
    assert one[:8] == other[:8] and one[8:12] != other[8:12] and one[12:] != other[12:]
    assert _prompt(dialect, [0, 1, 2], salt=2)[:8] != one[:8]
    assert _prompt(dialect, [0, 1, 2, 7, 8, 9, 10], num_prompt=9)[:8] == one[:8]
    assert len(_prompt(dialect, [0, 1, 2, 7, 8, 9, 10], num_prompt=9)) == 9


def test_beginnings_in_words_have_the_tokens_of_a_block():
    """With two tokens a word, a block of four tokens is two words."""
    dialect = Dialect("m", token_ids=None, tokens_per_unit=2.0)
    one, other = _prompt(dialect, [5], seed=1), _prompt(dialect, [5], seed=2)
    assert len(one) == 10 and one[:2] == other[:2] and one[2:] != other[2:]


@pytest.mark.parametrize("ids", [(260, 1000), None], ids=["token ids", "words"])
@pytest.mark.parametrize("tokens_per_unit", [1.0, 2.5])
def test_prompts_that_begin_as_a_range_do(ids, tokens_per_unit):
    """Ranges from one number are one text as far as both go, in units that hold no more than their tokens; another
    number, or another salt, is another text."""
    dialect = Dialect("m", token_ids=ids, tokens_per_unit=tokens_per_unit)

    def prompt(first, num_tokens, **more):
        return _prompt(dialect, Chain(range(first, first + num_tokens), 1), num_prompt=100, **more)

    long, short = prompt(0, 60, seed=1), prompt(0, 25, seed=2)
    alike = int(25 / tokens_per_unit)
    assert len(long) == len(short) == 100 / tokens_per_unit
    assert long[:alike] == short[:alike] and long[alike:] != short[alike:]
    assert long[: int(60 / tokens_per_unit)] == prompt(0, 60, seed=3)[: int(60 / tokens_per_unit)]
    assert long[:alike] not in (prompt(60, 25)[:alike], prompt(0, 25, salt=2)[:alike])
    assert len(prompt(0, 10**9)) == 100 / tokens_per_unit  # a chain may go on beyond the prompt
    one, other = (_prompt(dialect, Chain(range(n, n + 60), 1, lead=range(7, 32)), num_prompt=100) for n in (100, 200))
    known = int(60 / tokens_per_unit)
    assert one[:alike] == other[:alike] == prompt(7, 25)[:alike]  # what leads two ranges is one text
    assert one[alike : alike + 8] != other[alike : alike + 8]
    assert one[alike:known] == prompt(100, 60)[alike:known]


@pytest.mark.parametrize("tokens_per_unit", [1.0, 2.5])
def test_a_short_last_block_is_text_of_its_length(tokens_per_unit):
    """Two blocks of ten tokens and one of five, in 25 tokens: all of one text, whatever follows."""
    dialect = Dialect("m", token_ids=(260, 1000), tokens_per_unit=tokens_per_unit)
    chain = Chain([3, 4, 5], 10, short_by=5)
    one, other = (_prompt(dialect, chain, num_prompt=num, seed=num) for num in (25, 100))
    alike = int(25 / tokens_per_unit)
    assert len(one) == alike and one == other[:alike] and len(other) == 100 / tokens_per_unit


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://h:1", "/v1/models"),
        ("http://h:1/", "/v1/models"),
        ("http://h:1/v1", "/v1/models"),
        ("http://user:word@h:1/v1/?q", "/v1/models"),
        ("http://h:1/proxy/v1", "/proxy/v1/models"),
    ],
)
def test_urls(url, path):
    """With ``/v1`` or without, behind a proxy's path; secrets go nowhere."""
    server = Server(parse_address(url))
    assert server.get("/v1/models").startswith(f"GET {path} HTTP/1.1\r\nHost: h:1\r\n".encode())
    assert "word" not in server.address.url


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://h", "http://", "http://h:port", "http://h:99999", "http://a b"]
)
def test_what_is_no_url(url):
    """One sentence each."""
    with pytest.raises(ReplayError, match=r"URL: must be http://HOST:PORT"):
        parse_address(url)


def test_a_bad_url_does_not_repeat_a_password():
    """Not even when the URL is refused."""
    with pytest.raises(ReplayError) as error:
        parse_address("ftp://user:passw0rd@h")
    assert "passw0rd" not in str(error.value)
