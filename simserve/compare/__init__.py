"""Two finished runs side by side: what differs between them, what changed and by how much, with intervals."""

from simserve.compare.document import compare_runs
from simserve.compare.read import Run, load_run

__all__ = ["Run", "compare_runs", "load_run"]
