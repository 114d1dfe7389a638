"""Our prefix cache and vLLM's own ``KVCacheManager``, under the same calls, are never told apart.

Random small caches and prompts that begin alike (radix paths with short last blocks, groups behind system prompts,
conversations that repeat their answers), admitted, computed in chunks, decoded, preempted and ended at random: after
every step both show the same block tables, the same free queue, as many free blocks that could be found, as many
evictions, and the same hits for everybody who waits. vLLM runs in the interpreter that SIMSERVE_VLLM_PYTHON names;
SIMSERVE_VLLM_SEED, 0 by default, is the seed of the first run.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VLLM_PYTHON = os.environ.get("SIMSERVE_VLLM_PYTHON")
SEED = os.environ.get("SIMSERVE_VLLM_SEED", "0")
pytestmark = [
    pytest.mark.validation,
    pytest.mark.skipif(VLLM_PYTHON is None, reason="SIMSERVE_VLLM_PYTHON names no interpreter that has vLLM"),
]


def test_no_run_tells_our_prefix_cache_from_vllms():
    """Twenty seconds of runs show no difference, and they hit and evict, so there was something to differ in."""
    command = [str(VLLM_PYTHON), "-m", "tests.validation.vllm_prefix_cache", "--seed", SEED, "--seconds", "20"]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "difference" not in found, found
    assert found["runs"] > 0 and found["hit_tokens"] > 0 and found["evictions"] > 0, found
