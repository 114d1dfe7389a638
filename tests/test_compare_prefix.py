"""Two runs with prefix caching compared: how much of what was looked up each found."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from simserve.compare.document import compare_runs
from simserve.compare.pairing import pair_variants
from simserve.compare.read import Run, load_run
from simserve.manifest import build_manifest
from simserve.report.compare_words import ratio_rows
from simserve.run_directory import OutputChoices, write_files
from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from tests.scenario_builders import small

WORKLOAD = {
    "num_requests": 40,
    "arrivals": {"process": "constant", "rate_rps": 5.0},
    "prompt_tokens": {"uniform": {"low": 5, "high": 50}},
    "output_tokens": {"fixed": 4},
    "shared_prefixes": {"tokens": 160, "share": 0.5},
}


def run_folder(folder: Path, **cache: Any) -> Run:
    kv_cache = {"allocator": "paged", "block_size": 16, "num_blocks": 400, **cache}
    data = small(workload=WORKLOAD, step_time={"roofline": "h100-sxm"}, engine__kv_cache=kv_cache)
    result = simulate(parse_scenario(data))
    folder.mkdir()
    manifest = build_manifest(result, "simserve run", datetime(2026, 1, 1, tzinfo=UTC), 1.0)
    write_files(result, manifest, folder, OutputChoices(report=False))
    return load_run(folder)


def test_hit_rates_stand_in_the_comparison_where_anything_was_looked_up(tmp_path: Path) -> None:
    """As a share, each run's own; a run without prefix caching has none, and two of them no row."""
    runs = {name: run_folder(tmp_path / name, prefix_caching=name != "none") for name in ("some", "none")}
    pairs = {
        (a, b): compare_runs(runs[a], runs[b], pair_variants(runs[a], runs[b]))["pairs"][0]
        for a, b in (("none", "some"), ("none", "none"))
    }
    (summary,) = runs["some"].summary["variants"].values()
    metric = pairs["none", "some"]["metrics"]["kv_cache.prefix_hit_rate"]
    assert (metric["a"], metric["b"]) == (None, pytest.approx(summary["kv_cache"]["prefix_hit_rate"]))
    row = ratio_rows(pairs["none", "some"])["kv_cache.prefix_hit_rate"]
    assert row[0] == "prefix hits, of tokens looked up" and "%" in row[2]
    assert "kv_cache.prefix_hit_rate" not in ratio_rows(pairs["none", "none"])
