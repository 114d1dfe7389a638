"""Tenants' traces in studies of several replications: each draws them anew, as it draws everything else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from simserve.scenario import Scenario, TenantsWorkload
from simserve.scenario.messages import printable
from simserve.scenario.tenant_models import TracedTenant
from simserve.workload.traced_tenants import own_trace


def drawn_anew(
    data: Mapping[str, Any], scenario: Scenario, replications: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The plain data of a scenario with ``resample`` for every tenant who has a trace and does not say how, in blocks
    of about the root of its requests, and a note of each; as they are for one replication, and for other workloads.

    Raises TraceError for a trace that cannot be read.
    """
    workload = scenario.workload
    if replications < 2 or not isinstance(workload, TenantsWorkload):
        return dict(data), ()
    tenants, notes = dict(data["workload"]["tenants"]), []
    for name, tenant in workload.tenants.items():
        if not isinstance(tenant, TracedTenant) or tenant.resample is not None:
            continue
        num_requests = len(own_trace(name, tenant, scenario.base_dir))
        block = math.isqrt(min(tenant.limit or num_requests, num_requests) - 1) + 1
        tenants[name] = {**tenants[name], "resample": {"block_requests": block}}
        notes.append(
            printable(
                f"the trace of tenant {name} is drawn anew for each replication in blocks of {block} consecutive "
                "requests (its resample); one replication replays it as it is"
            )
        )
    return {**data, "workload": {**data["workload"], "tenants": tenants}}, tuple(notes)
