"""Runs inside an environment of its own that has `sched-sim`: its chunked scheduler serves a Mooncake file.

``python peer_sched_sim.py REQUESTS.jsonl SETTINGS.json`` prints one line of JSON. The time is processor time of
``Simulator.run`` alone, without reading. The server is an 80 GB H100 with Llama-3.1-8B, in its own terms.
"""

import importlib
import json
import sys
import time
from pathlib import Path

request_of = importlib.import_module("sched_sim.core.request").Request
simulator_of = importlib.import_module("sched_sim.core.event_engine").Simulator
scheduler_of = importlib.import_module("sched_sim.schedulers.factory").create_scheduler
presets = importlib.import_module("sched_sim.hardware.presets").PRESETS

settings = json.loads(Path(sys.argv[2]).read_text())
hardware = presets["a100"].model_copy(update={"name": "H100", "memory_bandwidth_gb_s": 3350.0, "fp16_tflops": 989.0})
scheduler = scheduler_of(
    "chunked", hardware, token_budget=settings["max_num_batched_tokens"], max_batch_size=settings["max_num_seqs"]
)
simulator = simulator_of(hardware, scheduler)
rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
simulator.submit_workload(
    [
        request_of(
            request_id=str(i),
            arrived_at=row["timestamp"] / 1e3,
            prompt_tokens=row["input_length"],
            output_tokens=row["output_length"],
        )
        for i, row in enumerate(rows)
    ]
)
began = time.process_time()
simulator.run()
run_s = time.process_time() - began
done = [request for request in simulator.all_requests if request.completed_at is not None]
print(
    json.dumps(
        {
            "run_s": run_s,
            "num_finished": len(done),
            "output_tokens": sum(request.decoded_tokens for request in done),
            "simulated_s": simulator.current_time,
            "mean_e2e_s": sum(request.completed_at - request.arrived_at for request in done) / len(done),
        }
    )
)
