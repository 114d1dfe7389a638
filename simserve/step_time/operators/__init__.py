"""Step times from operator tables that a profiler measured: LLMServingSim's, or Vidur's."""

from simserve.step_time.operators.load import load_operators
from simserve.step_time.operators.model import OperatorStepTime

__all__ = ["OperatorStepTime", "load_operators"]
