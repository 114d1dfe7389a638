"""What one tenant of a mixture sends, all but the times: drawn from its distributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from simserve.request import Content, IntColumn, Ranges
from simserve.scenario.workload_models import TenantConfig
from simserve.workload.length_pairs import length_pairs
from simserve.workload.prefixes import drawn_prefixes
from simserve.workload.streams import Stream
from simserve.workload.trace_rows import UNDECLARED


@dataclass(frozen=True)
class TenantRequests:
    """Columns of a tenant's first requests, and ``counts``: how many of them were so, in words."""

    num_prompt_tokens: IntColumn
    num_output_tokens: IntColumn
    max_output_tokens: IntColumn
    priority: IntColumn
    content: Content | Ranges | None = None
    counts: dict[str, int] = field(default_factory=dict)


def drawn_requests(
    tenant: TenantConfig, num_requests: int, draws: Callable[[Stream], np.random.Generator]
) -> TenantRequests:
    """So many requests of a tenant by its distributions; ``draws`` opens its own random streams."""
    prompts, outputs, cut = length_pairs(tenant, num_requests, draws)
    content = None
    if tenant.shared_prefixes:
        content = drawn_prefixes(tenant.shared_prefixes, num_requests, draws("shared_prefixes"))
        prompts = prompts + content.num_tokens
    declared, raised = declared_maxima(np.full(num_requests, UNDECLARED), outputs, tenant.max_output_tokens)
    counts = {f"{what} were cut to the distribution's max": count for what, count in cut.items()} | raised
    priority = np.full(num_requests, tenant.priority, np.int64)
    return TenantRequests(prompts, outputs, declared, priority, content, counts)


def declared_maxima(declared: IntColumn, outputs: IntColumn, limit: int | None) -> tuple[IntColumn, dict[str, int]]:
    """What a tenant's clients declare: what is known of each, else the limit (by default the tenant's longest output),
    never less than the true length; and how many were raised to it."""
    fallback = int(outputs.max()) if limit is None else limit
    declared = np.where(declared == UNDECLARED, fallback, declared)
    raised = int((declared < outputs).sum())
    return np.maximum(declared, outputs), {"declared maxima were below the true output length: raised to it": raised}
