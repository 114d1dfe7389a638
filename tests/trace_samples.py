"""A small trace of every dialect: two requests, 7 s apart, of 48 and 33 prompt tokens and 5 and 1 output tokens."""

import json
from typing import Any

GAP_NS = 7 * 10**9
PROMPTS, OUTPUTS = [48, 33], [5, 1]


def _csv(header: str, *rows: str) -> str:
    return "\n".join([header, *rows])


def _jsonl(*rows: dict[str, Any]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def _mooncake(times: tuple[float, float], hashes: tuple[list[int], list[int]], **more: Any) -> str:
    rows = zip(times, PROMPTS, OUTPUTS, hashes, strict=True)
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return _jsonl(*(dict(zip(names, row, strict=True)) | more for row in rows))


def _round(i: int, seconds: int) -> dict[str, Any]:
    events = [("user_message", seconds - 1), ("tool_result", seconds), ("text", seconds + 9)]
    timing = [{"event_type": kind, "timestamp": f"2026-06-01T05:40:{s:02}.000Z"} for kind, s in events]
    return {"session_id": "a", "input_tokens_total": PROMPTS[i], "output_tokens": OUTPUTS[i], "timing_events": timing}


_LLMSERVINGSIM = [
    {"input_toks": 48, "output_toks": 5, "arrival_time_ns": 10**18, "input_tok_ids": list(range(48))},
    {"input_toks": 33, "output_toks": 1, "arrival_time_ns": 10**18 + GAP_NS, "input_tok_ids": list(range(33))},
]

# dialect -> its text; the end of the last line is left to the tests
SAMPLES = {
    "azure": _csv(
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2024-05-10 00:00:00.500000+00:00,48,5",
        "2024-05-10 00:00:07.500000+00:00,33,1",
    ),
    "burstgpt": _csv(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,,3,GPT-4,48,5,53,API log",
        "12,s,1,GPT-4,33,1,34,Conversation log",
    ),
    "mooncake": _mooncake((3000, 10_000), ([1], [1])),
    "bailian": _mooncake((3, 10), ([1, 2, 3], [1, 2, 9]), chat_id=1, parent_chat_id=-1, turn=1, type="text"),
    "vidur": _csv("arrived_at,num_prefill_tokens,num_decode_tokens", "1.25,48,5", "8.25,33,1"),
    "splitwise": _csv(
        "request_id,arrival_timestamp,prompt_size,token_size", "0,0.125,48,5", "1,7.125,33,1"
    ),
    "llmservingsim": _jsonl(*_LLMSERVINGSIM),
    "simserve": _csv(
        "arrival_s,num_prompt_tokens,num_output_tokens,priority,tenant,session_id", "2.5,48,5,1,x,a", "9.5,33,1,0,y,a"
    ),
    "tracelab": _csv(
        "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms",
        "0,4000,0,0,48,5,7000",
        "0,4000,1,32,1,1,0",
    ),
    "tracelab_log": _jsonl(_round(0, 10), _round(1, 17)),
}  # fmt: skip
