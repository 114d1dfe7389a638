"""Which slow, obvious engine runs a case."""

from __future__ import annotations

from tests.reference import Reference
from tests.reference_no_cache import NoCacheReference, NoCacheStaticReference
from tests.reference_speculation import SpeculativeReference
from tests.reference_static import StaticReference
from tests.reference_transformers import TransformersReference
from tests.strategies import Case


def run_reference(case: Case) -> Reference:
    """The case, run to its end step by step."""
    engines: dict[str, type[Reference]] = {"static": StaticReference, "transformers": TransformersReference}
    if case.settings.allocator == "none":
        engines = {"static": NoCacheStaticReference, "continuous": NoCacheReference}
    if case.settings.speculation is not None:
        engines = {"continuous": SpeculativeReference, "chunked": SpeculativeReference}
    return engines.get(case.settings.policy, Reference)(case.table, case.settings, case.step_time, case.clients).run()
