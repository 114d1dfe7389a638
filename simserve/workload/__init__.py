"""Traces and generators to requests."""

from simserve.workload.build import Workload, build_workload
from simserve.workload.trace import Trace, read_trace

__all__ = ["Trace", "Workload", "build_workload", "read_trace"]
