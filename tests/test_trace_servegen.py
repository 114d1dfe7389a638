"""``simserve trace servegen``: pools of clients by hand, the published one against sums of its own, and bad ones."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simserve.cli import app
from simserve.errors import TraceError
from simserve.scenario import parse_scenario
from simserve.trace_tools.pool_tenants import PoolPart, day_s, pool_tenants
from simserve.trace_tools.servegen import read_pool
from simserve.workload.build import build_workload
from tests.scenario_builders import small

POOL = Path(__file__).parents[2] / "shared/data/traces/servegen/reason_deepseek-r1.tar.gz"
A = "0,2.0,1.5,Gamma,0.4,1.1\n600,4.0,0.5,Weibull,2.0,0.3\n1200,0,0,,0,0\n"
B = "0,0,0,,0,0\n600,1.0,3.0,Gamma,0.1,9.0\n1200,1.0,1.0,Gamma,1.0,1.0\n"
LENGTHS: dict[str, Any] = {
    "0": {"input_tokens": "{10: 0.5, 30: 0.5}", "output_tokens": "{7: 1.0}", "reason_ratio": "{}"},
    "600": {"input_tokens": "{50: 1.0}", "output_tokens": "{0: 0.5, 9: 0.5}", "reason_ratio": "{}"},
}


def pool_of(folder: Path, *traces: str, lengths: dict[str, Any] = LENGTHS) -> Path:
    folder.mkdir(exist_ok=True)
    for i, trace in enumerate(traces):
        (folder / f"chunk-{i}-trace.csv").write_text(trace)
        (folder / f"chunk-{i}-dataset.json").write_text(json.dumps(lengths))
    return folder


def test_a_pool_by_hand(tmp_path: Path) -> None:
    """Client 0 sends 1,200 in its first window, 2,400 in its second and none in its third, whose lengths are 10 or 30
    at first and 50 later: the mean is (1200 · 20 + 2400 · 50) / 3600. Most of its gaps are Weibull's."""
    pool = read_pool(pool_of(tmp_path / "p", A, B))
    assert day_s(pool) == 1800
    first, second = pool_tenants(pool, PoolPart(0, 1800, 5))
    assert (first.name, second.name) == ("client-0", "client-1")
    assert (first.num_requests, second.num_requests) == (3600, 1200)
    assert first.section["arrivals"] == {
        "process": "windows",
        "gaps": "weibull",
        "windows": [
            {"duration_s": 600.0, "rate_rps": 2.0, "cv": 1.5},
            {"duration_s": 600.0, "rate_rps": 4.0, "cv": 0.5},
            {"duration_s": 600.0, "rate_rps": 0.0},
        ],
    }
    assert first.mean_prompt_tokens == pytest.approx((1200 * 20 + 2400 * 50) / 3600)
    assert first.mean_output_tokens == pytest.approx((1200 * 7 + 2400 * 9) / 3600)  # no answer of 0 tokens
    assert first.cv == pytest.approx(((1200 * 1.5**2 + 2400 * 0.5**2) / 3600) ** 0.5)


def test_a_part_of_the_day_at_a_rate(tmp_path: Path) -> None:
    """From 300 to 900 s: half of the first window and half of the second; at 2.5 requests/s of all together there are
    1,500, shared as in the pool: 600 + 1200 to 300."""
    pool = read_pool(pool_of(tmp_path / "p", A, B))
    first, second = pool_tenants(pool, PoolPart(300, 900, 5, 2.5))
    assert first.num_requests == pytest.approx(1500 * 1800 / 2100)
    assert second.num_requests == pytest.approx(1500 * 300 / 2100)
    assert [window["duration_s"] for window in first.section["arrivals"]["windows"]] == [300, 300]


def test_the_others_together(tmp_path: Path) -> None:
    """Rates add up; cv² is the mean by rate: in the second window (4 · 0.5² + 1 · 3²) / 5."""
    (only,) = pool_tenants(read_pool(pool_of(tmp_path / "p", A, B)), PoolPart(0, 1800, 1))[1:]
    assert only.name == "others"
    both = pool_of(tmp_path / "q", "0,9,1,Gamma,1,1\n600,9,1,Gamma,1,1\n1200,9,1,Gamma,1,1\n", A, B)
    others = pool_tenants(read_pool(both), PoolPart(0, 1800, 1))[1]
    windows = others.section["arrivals"]["windows"]
    assert [window["rate_rps"] for window in windows] == [2.0, 5.0, 1.0]
    assert windows[1]["cv"] == pytest.approx((10 / 5) ** 0.5, rel=1e-5)
    assert others.num_requests == 3600 + 1200


def test_the_published_pool() -> None:
    """DeepSeek-R1's 73 clients: as many requests as the files' rates add up to, and mean lengths of the hour that is
    drawn as the files have them, summed here from csv and JSON."""
    if not POOL.exists():
        pytest.skip("the published pool is not here")
    pool = read_pool(POOL)
    assert len(pool) == 73
    expected, requests, outputs = 0.0, 0.0, 0.0
    with tarfile.open(POOL) as archive:
        texts = {Path(m.name).name: archive.extractfile(m).read().decode() for m in archive if "chunk" in m.name}
    for name in [name for name in texts if name.endswith("csv")]:
        rows = [[float(row[0]), float(row[1])] for row in csv.reader(io.StringIO(texts[name]))]
        expected += sum(600 * rate for _, rate in rows)
        hour = sum(600 * rate for begin, rate in rows if 50_400 <= begin < 54_000)
        told = json.loads(texts[name.replace("trace.csv", "dataset.json")])["43200"]["output_tokens"]
        pairs = [cell.split(":") for cell in told.strip("{}").split(",") if cell]
        shares = {int(tokens): float(share) for tokens, share in pairs}
        if hour and shares:
            requests += hour
            outputs += hour * sum(tokens * share for tokens, share in shares.items()) / sum(shares.values())
    assert sum(each.num_requests for each in pool_tenants(pool, PoolPart(0, day_s(pool), 999))) == pytest.approx(
        expected
    )
    tenants = pool_tenants(pool, PoolPart(50_400, 54_000, 10))
    found = sum(each.num_requests for each in tenants)
    assert found == pytest.approx(requests)
    assert sum(each.num_requests * each.mean_output_tokens for each in tenants) / found == pytest.approx(
        outputs / requests, rel=1e-3
    )
    workload = {"num_requests": 20_000, "tenants": {each.name: each.section for each in tenants}}
    table = build_workload(parse_scenario(small(workload=workload)).workload, 0, Path()).table
    assert table.num_output_tokens.mean() == pytest.approx(outputs / requests, rel=0.05)
    assert table.tenants is not None
    counts = np.bincount(table.tenants.of) / 20_000
    shares = np.array([each.num_requests for each in tenants]) / found
    np.testing.assert_allclose(counts, shares, atol=0.05)


def test_the_command(tmp_path: Path) -> None:
    """A section that a scenario takes, from a folder or an archive of it; as JSON, too; nothing is replaced."""
    folder, out = pool_of(tmp_path / "p", A, B), tmp_path / "w.yaml"
    with tarfile.open(tmp_path / "p.tgz", "w:gz") as archive:
        archive.add(folder, "data/p")
    words = ["trace", "servegen", str(tmp_path / "p.tgz"), "--to", "20min", "--rate", "3"]
    done = CliRunner().invoke(app, [*words, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "client-0" in done.stdout and "3,600 requests in 20 min" in done.stdout
    workload = yaml.safe_load(out.read_text())["workload"]
    assert parse_scenario(small(workload=workload)).workload.model_dump(exclude_unset=True) == workload
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert told["workload"] == workload
    assert [each["name"] for each in told["tenants"]] == ["client-0", "client-1"]
    assert CliRunner().invoke(app, [*words, "--out", str(out)]).exit_code == 2


@pytest.mark.parametrize(
    ("trace", "lengths", "sentence"),
    [
        ("0,1,1\n", LENGTHS, "p: chunk-0-trace.csv: line 1: must be begin, rate, cv, law … (got '0,1,1')"),
        ("0,1,1,Pareto\n600,1,1,Gamma\n", LENGTHS, "p: chunk-0-trace.csv: line 1: must be a rate, a cv and Gamma or"),
        ("0,nan,1,Gamma\n600,1,1,Gamma\n", LENGTHS, "p: chunk-0-trace.csv: line 1: must be a rate"),
        ("0,1,1,Gamma\n0,1,1,Gamma\n", LENGTHS, "p: chunk-0-trace.csv: line 2: must begin after the line before"),
        ("0,1,1,Gamma\n", LENGTHS, "p: chunk-0-trace.csv: must have two windows or more"),
        (A, {"0": {"input_tokens": "{1: 1}"}}, "p: chunk-0-dataset.json: must be an object of times"),
        (
            A,
            {"0": {"input_tokens": "{a: 1}", "output_tokens": "{}"}},
            "p: chunk-0-dataset.json: must have lengths such",
        ),
    ],
)
def test_a_bad_pool_is_one_sentence(tmp_path: Path, trace: str, lengths: dict[str, Any], sentence: str) -> None:
    """Which file, where, the rule, and what was found."""
    with pytest.raises(TraceError) as caught:
        read_pool(pool_of(tmp_path / "p", trace, lengths=lengths))
    assert str(caught.value).startswith(sentence)


def test_what_is_no_pool(tmp_path: Path) -> None:
    """No file, an empty folder, half a client, two pools in one folder, a file that is no archive, an empty time."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("x")
    half = pool_of(tmp_path / "half", A)
    (half / "chunk-0-dataset.json").unlink()
    pool_of(tmp_path / "two", A)
    (tmp_path / "two").rename(tmp_path / "x")
    (tmp_path / "two").mkdir()
    for name in ("m", "n"):
        pool_of(tmp_path / "two" / name, A)
    cases = {
        "none": "none: no such file",
        "empty": "must hold ServeGen's clients",
        "half": "half: lacks chunk-0-dataset.json",
        "two": "must hold one pool of clients (got m, n)",
        "text": "must be a folder or a tar archive",
    }
    for name, sentence in cases.items():
        done = CliRunner().invoke(app, ["trace", "servegen", str(tmp_path / name)])
        assert done.exit_code == 2
        assert sentence in done.output
    done = CliRunner().invoke(app, ["trace", "servegen", str(tmp_path / "x"), "--from", "21min"])
    assert "--from, --to: must hold a request" in done.output
    done = CliRunner().invoke(app, ["trace", "servegen", str(tmp_path / "x"), "--from", "2d"])
    assert "--to: must be later than --from, in a day of 1800 s" in done.output


def test_a_client_whose_lengths_nobody_knows_is_refused(tmp_path: Path) -> None:
    """Its requests would be missing from the rate; who sends nothing then needs no lengths."""
    folder = pool_of(tmp_path / "p", A, B)
    late = {"1200": LENGTHS["0"]}
    (folder / "chunk-1-dataset.json").write_text(json.dumps(late))
    with pytest.raises(TraceError, match=r"^client-1: must tell lengths of what it sends from 600 to 1200 s"):
        pool_tenants(read_pool(folder), PoolPart(600, 1200, 5))
    assert [each.name for each in pool_tenants(read_pool(folder), PoolPart(0, 600, 5))] == ["client-0"]


def test_an_archive_that_cannot_be_read_is_one_plain_sentence(tmp_path: Path) -> None:
    """Text, a pipe (which nobody waits for), a file cut short and one that is damaged: no words of the libraries'."""
    pool_of(tmp_path / "p", A)
    with tarfile.open(tmp_path / "whole.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "p", "p")
    whole = (tmp_path / "whole.tar.gz").read_bytes()
    (tmp_path / "text").write_text("x" * 2000)
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "bent.tar.gz").write_bytes(whole[:40] + bytes(40) + whole[80:])
    os.mkfifo(tmp_path / "pipe")
    for name in ("text", "cut.tar.gz", "bent.tar.gz", "pipe"):
        with pytest.raises(TraceError) as caught:
            read_pool(tmp_path / name)
        rule = "must be a folder or a tar archive of ServeGen's clients"
        assert str(caught.value).startswith(f"{tmp_path / name}: {rule}")
        assert not any(word in str(caught.value) for word in ("\\n", "method", "Error", "Errno"))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.binary(max_size=60), st.integers(0, len(A)))
def test_any_bytes_are_a_pool_or_one_sentence(tmp_path: Path, more: bytes, lengths: bytes, cut: int) -> None:
    """Law: never a traceback; a printable line."""
    folder = pool_of(tmp_path / "p", A)
    (folder / "chunk-0-trace.csv").write_bytes(A.encode()[:cut] + more)
    if lengths:
        (folder / "chunk-0-dataset.json").write_bytes(lengths)
    try:
        tenants = pool_tenants(read_pool(folder), PoolPart(0, 1800, 5))
    except TraceError as error:
        assert str(error).isprintable()
    else:
        assert all(tenant.num_requests > 0 for tenant in tenants)
