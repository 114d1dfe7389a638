"""Runs of real servers and engines, read from files that others wrote.

Readers turn a file into a ``RecordedRun``; ``read.py`` tells which one by the file's columns.
"""

from simserve.recorded.run import RecordedRun, Stamps, recorded_run

__all__ = ["RecordedRun", "Stamps", "recorded_run"]
