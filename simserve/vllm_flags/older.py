"""Flags that earlier vLLMs knew and people still write; neither 0.19 nor 0.32 takes them."""

from __future__ import annotations

OLDER: dict[str, bool] = {
    "swap-space": True,
    "disable-log-requests": False,
    "num-scheduler-steps": True,
    "multi-step-stream-outputs": False,
    "use-v2-block-manager": False,
    "num-lookahead-slots": True,
    "scheduler-delay-factor": True,
    "preemption-mode": True,
    "max-seq-len-to-capture": True,
    "guided-decoding-backend": True,
    "device": True,
    "rope-scaling": True,
    "rope-theta": True,
    "worker-use-ray": False,
    "engine-use-ray": False,
    "disable-async-output-proc": False,
    "cuda-graph-sizes": True,
    "task": True,
    "enable-reasoning": False,
    "speculative-model": True,
    "num-speculative-tokens": True,
}
"""By name, whether it takes a value."""

SPECULATION = (
    "how often drafts are accepted stands in no command: write engine.speculation, and leave async_scheduling out"
)
WHY: dict[str, str] = {
    "swap-space": "vLLM's v1 engine never swaps; what it preempts is computed again, as here",
    "preemption-mode": "vLLM's v1 engine preempts by computing again, as here",
    "num-scheduler-steps": "multi-step scheduling went with the v0 engine",
    "scheduler-delay-factor": "went with the v0 engine",
    "rope-scaling": "it lengthens the model's context; give --max-model-len",
    "speculative-model": SPECULATION,
    "num-speculative-tokens": SPECULATION,
}
