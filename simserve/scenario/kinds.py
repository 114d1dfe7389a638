"""Where in a scenario a section comes in several kinds, and which keys exclude each other inside one kind."""

from __future__ import annotations

from collections.abc import Mapping

from simserve.scenario.choice import Choice
from simserve.scenario.client_models import THINK_TIMES
from simserve.scenario.engine_models import ALLOCATORS, POLICIES
from simserve.scenario.length_models import LENGTHS
from simserve.scenario.model_models import ATTENTION
from simserve.scenario.speculation_models import DRAFTS
from simserve.scenario.step_time_models import STEP_TIMES
from simserve.scenario.workload_models import ARRIVALS, TENANTS, WORKLOADS

CHOICES: Mapping[tuple[int | str, ...], Choice] = {
    ("step_time",): STEP_TIMES,
    ("attention",): ATTENTION,
    ("workload",): WORKLOADS,
    ("workload", "arrivals"): ARRIVALS,
    ("workload", "think_time_s"): THINK_TIMES,
    ("workload", "prompt_tokens"): LENGTHS,
    ("workload", "output_tokens"): LENGTHS,
    ("workload", "sessions", "turns"): LENGTHS,
    ("workload", "sessions", "new_tokens"): LENGTHS,
    ("workload", "sessions", "think_time_s"): THINK_TIMES,
    ("engine",): POLICIES,
    ("engine", "kv_cache"): ALLOCATORS,
    ("engine", "speculation", "draft"): DRAFTS,
}
# Of these one is given. The first key of each says that it is the one, and the rest can go with it.
EXCLUSIVE: Mapping[tuple[int | str, ...], tuple[tuple[str, ...], ...]] = {
    ("workload",): (("arrivals",), ("concurrency", "think_time_s")),
    ("engine", "kv_cache"): (
        ("num_blocks",),
        ("memory", "weights", "overhead"),
        ("device_memory", "weights", "overhead"),
    ),
}
# A key of the user's own stands between: what is under each tenant's name is as what is under ``workload``.
_NAMED = ("workload", "tenants")
_TENANT_SECTIONS = ("arrivals", "prompt_tokens", "output_tokens")


def choice_at(path: tuple[int | str, ...]) -> Choice | None:
    """The choice that a section at a path is; None where there is but one kind."""
    if path[:2] == _NAMED and len(path) == 3:
        return TENANTS
    if path[:2] == _NAMED and len(path) == 4 and path[3] in _TENANT_SECTIONS:
        return CHOICES["workload", path[3]]
    return CHOICES.get(path)
