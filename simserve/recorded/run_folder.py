"""The folder of ``simserve run`` as a recorded run: what one simulation predicted, to score another against."""

from __future__ import annotations

from pathlib import Path

from simserve.recorded import generic
from simserve.recorded.run import RecordedRun
from simserve.workload.trace_file import read_columns

FORMAT = "simserve-run"


def read(path: Path) -> RecordedRun:
    """The requests of the folder's only variant."""
    return generic.run_of(read_columns(path / "requests.parquet"), f"{path.name}/requests.parquet", FORMAT)
