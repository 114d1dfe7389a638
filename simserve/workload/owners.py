"""Whose a trace's requests are: its column of tenants, and what a scenario promises each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simserve.request import IntColumn, Tenant, Tenants
from simserve.scenario.messages import did_you_mean, shown
from simserve.scenario.slo_models import SloConfig
from simserve.workload.columns import Column
from simserve.workload.odd_rows import counted
from simserve.workload.refusal import refusal

MAX_TENANTS, MAX_NAME = 1000, 100  # as in a scenario's workload.tenants
UNNAMED = "unnamed"  # the tenant of rows that name none


@dataclass(frozen=True)
class Owners:
    """Row i is of ``names[of[i]]``."""

    names: tuple[str, ...]
    of: IntColumn


def owners(column: Column | None, notes: list[str]) -> Owners | None:
    """What a column of names tells; None where it tells nothing. Rows without a name belong together. Raises TraceError
    for a name that could be no tenant's in a scenario, and for more names than a report can have."""
    if column is None:
        return None
    text = column.text()
    missing = (text == "").to_numpy(bool)
    if missing.all():
        return None
    counted(notes, missing, f"without {column.name}: they are of the tenant {UNNAMED!r}")
    of, found = pd.factorize(text.mask(missing, UNNAMED))
    names = [str(name) for name in found]
    fits = np.array([len(name) <= MAX_NAME and name.isprintable() for name in names], bool)
    column.refuse_unless(fits[of], f"must be printable text of at most {MAX_NAME} characters")
    if len(names) > MAX_TENANTS:
        raise refusal(
            column.where,
            f"{column.name}: must name at most {MAX_TENANTS:,} tenants (got {len(names):,}); rename the column, and "
            "they are nobody's in particular",
        )
    return Owners(tuple(names), np.asarray(of, np.int64))


def in_order(of: IntColumn, names: tuple[str, ...]) -> Tenants:
    """The tenants of a trace's requests, by first arrival; it promises nobody anything."""
    codes, found = pd.factorize(of)
    codes = np.asarray(codes, np.int64)
    codes.setflags(write=False)
    return Tenants(tuple(Tenant(names[i]) for i in found.tolist()), codes)


def with_limits(tenants: Tenants | None, slos: Mapping[str, SloConfig], where: str) -> Tenants | None:
    """The tenants with the limits that a scenario gives them. Raises TraceError for limits of nobody."""
    if not slos:
        return tenants
    if tenants is None:
        raise refusal(where, "must have a column tenant, for workload.tenant_slos to be theirs (it has none)")
    names = [tenant.name for tenant in tenants.each]
    unknown = next((name for name in slos if name not in names), None)
    if unknown is not None:
        hint = did_you_mean(unknown, names[:8])
        raise refusal(where, f"workload.tenant_slos: must name tenants of the trace (got {shown(unknown)}; {hint})")
    each = [Tenant(name, **slos[name].model_dump()) if name in slos else Tenant(name) for name in names]
    return Tenants(tuple(each), tenants.of)
