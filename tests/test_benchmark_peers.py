"""What is handed to other simulators is the traffic that ours serve, and the ratios are ratios."""

import gzip
import json

import numpy as np

from tests.benchmarks import peers
from tests.benchmarks.peers import CHAT, MOCKER, RACES, SCHED_SIM, rows_of, write_requests
from tests.benchmarks.regimes import REGIMES, lognormal


def test_the_file_holds_the_requests_and_no_two_share_a_block(tmp_path):
    """Lengths exactly, arrivals to the microsecond, as many ids as Mooncake's 512-token blocks hold, all different."""
    table = lognormal(300, prompt=1000.0, output=50.0, rate_rps=9.0)
    write_requests(tmp_path / "requests.jsonl", table)
    rows = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert [row["input_length"] for row in rows] == table.num_prompt_tokens.tolist()
    assert [row["output_length"] for row in rows] == table.num_output_tokens.tolist()
    assert np.allclose([row["timestamp"] / 1e3 for row in rows], table.arrival_ns / 1e9, atol=1e-6)
    ids = [row["hash_ids"] for row in rows]
    assert [len(each) for each in ids] == [-(-row["input_length"] // 512) for row in rows]
    assert len({one for each in ids for one in each}) == sum(map(len, ids))


def test_mooncakes_own_file_is_handed_on_as_it_is(tmp_path, monkeypatch):
    """Unpacked, every byte."""
    lines = b'{"timestamp": 0, "input_length": 3, "output_length": 2, "hash_ids": [7]}\n'
    (tmp_path / "trace.gz").write_bytes(gzip.compress(lines))
    monkeypatch.setattr(peers, "CONVERSATION", tmp_path / "trace.gz")
    peers.write_conversation(tmp_path / "requests.jsonl")
    assert (tmp_path / "requests.jsonl").read_bytes() == lines


def test_the_best_of_ours_is_set_against_each():
    """Twice as fast as the peer: 2 ×; half as fast as it: 0.5 ×."""
    results = [("simserve, python engine", 10, 100.0, ""), ("simserve, compiled engine", 10, 1000.0, "")]
    rows = list(rows_of(RACES[0], [*results, ("slow", 5, 500.0, ""), ("fast", 5, 2000.0, "")]))
    assert [row.split(" | ")[4] for row in rows] == ["10 ×", "1 ×", "2 ×", "0.5 ×"]


def test_races_are_run_in_regimes_that_exist_and_peers_are_pinned():
    """Versions are named, so that a table can be made again; their scripts are here."""
    assert {race.regime for race in RACES} <= {regime.name for regime in REGIMES}
    for peer in (MOCKER, SCHED_SIM):
        assert "==" in peer.package
        assert (peers.Path(peers.__file__).parent / peer.script).exists()
    assert max(size for _, size in CHAT) == 1_000_000


def test_a_peer_is_run_by_the_python_of_its_own_environment(tmp_path):
    """What its script prints last is the answer; an environment that is complete is not made again."""
    home = tmp_path / "thing-1.0"
    (home / "bin").mkdir(parents=True)
    (home / ".complete").touch()
    python = home / "bin/python"
    python.write_text("#!/bin/sh\necho chatter\necho '{\"run_s\": 0.5}'\n")
    python.chmod(0o755)
    peer = peers.Peer("thing==1.0", "peer_mocker.py", "a thing")
    assert peer.python(tmp_path) == python
    assert peer.run(tmp_path, tmp_path / "requests", tmp_path / "settings") == {"run_s": 0.5}
    assert list(tmp_path.iterdir()) == [home]
