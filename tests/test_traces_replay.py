"""Every dialect replays: the sample of each, and each public file, through the whole simulation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.records import FINISHED
from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from tests.scenario_builders import SMALL
from tests.trace_samples import GAP_NS, PROMPTS, SAMPLES

DATA = Path(__file__).parents[1] / "../shared/data/traces"
NUM_REQUESTS = 200  # of a public file
ENGINE = {
    "policy": "chunked",
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "max_model_len": 1_000_000,
    "kv_cache": {"allocator": "paged", "num_blocks": 200_000, "prefix_caching": True},
}


def scenario(folder: Path, **workload: Any) -> Any:
    data = {**SMALL, "model": "qwen2.5-0.5b", "step_time": {"roofline": "h100-sxm"}, "engine": ENGINE}
    return parse_scenario({**data, "workload": workload}, "s", folder)


@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_sample_replays(tmp_path: Path, name: str, fast_forward: bool) -> None:
    """Both requests are served, the second 7 s after the first, or as long after its answer where it waits for it."""
    (tmp_path / "t").write_text(SAMPLES[name])
    (variant,) = simulate(scenario(tmp_path, trace="t"), fast_forward=fast_forward).variants.values()
    r = variant.records.requests
    assert (r.status == FINISHED).all()
    assert r.table.num_prompt_tokens.tolist() == PROMPTS
    begin_ns = r.end_ns[0] if name == "tracelab" else r.arrival_ns[0]
    assert r.arrival_ns[1] == begin_ns + GAP_NS


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.*")) if DATA.exists() else [])
def test_a_public_file_replays(path: Path) -> None:
    """The first 200 requests of each are all served, and nobody before they arrived; lengths without times in a closed
    loop, sessions in turn."""
    if path.name.endswith(".tar.gz"):
        pytest.skip("an archive of a generator's parameters")
    closed = {"concurrency": 16} if "vidur" in path.parts else {}
    result = simulate(scenario(path.parent, trace=path.name, limit=NUM_REQUESTS, **closed))
    (variant,) = result.variants.values()
    r, turns = variant.records.requests, result.workload.clients.turns
    assert (r.status == FINISHED).all()
    assert r.num_emitted_tokens.tolist() == r.table.num_output_tokens.tolist()
    assert (r.first_scheduled_ns >= r.arrival_ns).all()
    if turns is not None:
        ends = np.flatnonzero(turns.next_id >= 0)
        following = turns.next_id[ends]
        assert (r.arrival_ns[following] == r.end_ns[ends] + turns.wait_ns[following]).all()
    elif not closed:
        assert (r.arrival_ns == r.table.arrival_ns).all()
