"""Which slow, obvious engine runs a case."""

from __future__ import annotations

from tests.reference import Reference
from tests.reference_transformers import TransformersReference
from tests.strategies import Case


def run_reference(case: Case) -> Reference:
    """The case, run to its end step by step."""
    engine = TransformersReference if case.settings.policy == "transformers" else Reference
    return engine(case.table, case.settings, case.step_time, case.clients).run()
