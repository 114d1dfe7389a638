"""Other simulators on the same requests in one run, as ratios: ``python -m tests.benchmarks.peers``.

Each is installed from the package index into an environment of its own (``--into``, made once); nothing here depends on
them. Times are processor time of the simulation alone. What a step lasts differs between simulators, so the load is the
same only roughly: the mean latencies beside the rates show by how much.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve.request import RequestTable
from simserve.step_time.stretch import NS_PER_S
from tests.benchmarks.cases import Case, Cost, EngineName, measure, regime_named
from tests.benchmarks.regimes import CONVERSATION, NUM_CONVERSATION

CONTENT_BLOCK = 512  # tokens of one Mooncake hash
VIDUR_RPS = 776  # requests/s that Vidur's documents say of 987 + 196 tokens at 6/s: quoted, not run


@dataclass(frozen=True)
class Peer:
    """A package, and the script that runs it in its own environment."""

    package: str
    script: str
    about: str

    def python(self, folder: Path) -> Path:
        """The Python of its environment, made and filled on first use."""
        home = folder / self.package.replace("==", "-")
        python = home / "bin/python"
        if not (home / ".complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", self.package]
            subprocess.run(pip, check=True)
            (home / ".complete").touch()
        return python

    def run(self, folder: Path, requests: Path, settings: Path) -> dict[str, Any]:
        """What its script prints."""
        command = [self.python(folder), Path(__file__).parent / self.script, requests, settings]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer


MOCKER = Peer("ai-dynamo-runtime==1.6.1", "peer_mocker.py", "Dynamo's mocker 1.6.1, Rust")
SCHED_SIM = Peer("sched-sim==0.2.1", "peer_sched_sim.py", "sched-sim 0.2.1, Python")


@dataclass(frozen=True)
class Race:
    """A regime, how many of its requests each peer gets, and how many each of our engines."""

    regime: str
    peers: tuple[tuple[Peer, int], ...]
    ours: tuple[tuple[EngineName, int], ...]


CHAT: tuple[tuple[EngineName, int], ...] = (("compiled", 1_000_000), ("compiled", 100_000), ("python", 10_000))
RACES = (
    Race("near saturation", ((MOCKER, 100_000), (SCHED_SIM, 2_000)), CHAT),
    Race("overload", ((MOCKER, 20_000), (SCHED_SIM, 2_000)), CHAT),
    Race("prefix-heavy", ((MOCKER, NUM_CONVERSATION),), (("python", NUM_CONVERSATION),)),
    Race("prefix-heavy, 16", ((MOCKER, NUM_CONVERSATION),), (("python", NUM_CONVERSATION),)),
    Race("vidur", (), CHAT),
)


def write_requests(path: Path, table: RequestTable) -> None:
    """The requests as a Mooncake file in which no two share a block."""
    columns = table.arrival_ns, table.num_prompt_tokens, table.num_output_tokens
    first = 0
    with path.open("w") as file:
        for arrival_ns, prompt, output in zip(*(column.tolist() for column in columns), strict=True):
            stop = first - (-prompt // CONTENT_BLOCK)
            row = {"timestamp": 1e3 * arrival_ns / NS_PER_S, "input_length": prompt, "output_length": output}
            file.write(json.dumps({**row, "hash_ids": list(range(first, stop))}) + "\n")
            first = stop


def write_conversation(path: Path) -> None:
    """Mooncake's own file, unpacked."""
    path.write_bytes(gzip.decompress(CONVERSATION.read_bytes()))


def run_race(race: Race, folder: Path) -> Iterator[tuple[str, int, float, str]]:
    """Who, how many requests, requests/s and a remark, ours first."""
    regime = regime_named(race.regime)
    for engine, size in race.ours:
        cost = measure(Case(race.regime, size, engine))
        yield f"simserve, {engine} engine", size, cost.requests_per_s, _remark(cost)
    with tempfile.TemporaryDirectory() as scratch:
        requests, settings = Path(scratch, "requests.jsonl"), Path(scratch, "settings.json")
        settings.write_text(json.dumps(vars(regime.settings)))
        for peer, size in race.peers:
            if regime.settings.prefix_caching:
                write_conversation(requests)
            else:
                write_requests(requests, regime.table(size))
            answer = peer.run(folder, requests, settings)
            served = f"{answer['num_finished']:,} finished, mean latency {answer['mean_e2e_s']:.1f} s"
            yield peer.about, size, size / answer["run_s"], served


def main() -> None:
    """Run all races and print a table of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__)
    parser.add_argument("--into", type=Path, default=Path(".benchmarks/peers"), help="folder of the environments")
    folder = parser.parse_args().into.resolve()
    print("| traffic | simulator | requests | requests/s | simserve at its best | |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    for race in RACES:
        regime = regime_named(race.regime)
        if regime.missing:
            print(f"| {race.regime} | not run: {regime.missing} | | | | |")
            continue
        for line in rows_of(race, list(run_race(race, folder))):
            print(line, flush=True)


def rows_of(race: Race, results: list[tuple[str, int, float, str]]) -> Iterator[str]:
    """Lines of the table: how many times faster our fastest engine is than each."""
    best = max(rate for who, _, rate, _ in results if who.startswith("simserve"))
    what = f"{race.regime}: {regime_named(race.regime).about}"
    for who, size, rate, remark in results:
        yield f"| {what} | {who} | {size:,} | {rate:,.0f} | {best / rate:,.3g} × | {remark} |"


def _remark(cost: Cost) -> str:
    return f"{cost.timeouts_per_request:.3g} SimPy timeouts a request ({cost.timeouts_per_s / 1e6:.2f} million/s)"


if __name__ == "__main__":
    main()
