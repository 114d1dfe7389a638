"""Runs inside an environment of its own that has `ai-dynamo-runtime`: its mocker replays a Mooncake file.

``python peer_mocker.py REQUESTS.jsonl SETTINGS.json`` prints one line of JSON. The time is processor time of the whole
call or, where that is less, the time that the mocker itself reports for its simulation.
"""

import importlib
import json
import sys
import time
from pathlib import Path

replay = importlib.import_module("dynamo._core").run_mocker_trace_replay
settings = json.loads(Path(sys.argv[2]).read_text())
engine = {
    "backend": "vllm",
    "num_gpu_blocks": settings["num_blocks"],
    "block_size": settings["block_size"],
    "max_num_seqs": settings["max_num_seqs"],
    "max_num_batched_tokens": settings["max_num_batched_tokens"],
    "enable_prefix_caching": settings["prefix_caching"],
}
began = time.process_time()
summary = replay([sys.argv[1]], extra_engine_args={"engine": engine}, trace_block_size=512).summary
run_s = min(time.process_time() - began, summary["wall_time_ms"] / 1e3)
print(
    json.dumps(
        {
            "run_s": run_s,
            "num_finished": summary["completed_requests"],
            "output_tokens": summary["total_output_tokens"],
            "simulated_s": summary["duration_ms"] / 1e3,
            "mean_e2e_s": summary["mean_e2e_latency_ms"] / 1e3,
        }
    )
)
