"""The requests of one variant as columns, in order of arrival."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simserve.compare.read import REQUESTS, Run
from simserve.distributions import FloatColumn
from simserve.errors import RunError
from simserve.request import IntColumn, Tenant, Tenants

LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queue_time_s")
SIZES = ("num_prompt_tokens", "num_output_tokens", "num_emitted_tokens")
FLOATS = ("arrival_s", "end_s", *LATENCIES)
TENANT = "tenant"  # a column of runs with tenants
COLUMNS = ("variant", "request_id", "status", *FLOATS, *SIZES)
STATUSES = ("finished", "rejected", "cancelled", "timed_out")  # always counted; others where there are some


@dataclass(frozen=True)
class Requests:
    """``columns`` by name, one element per request in order of arrival (equal times by id): seconds (NaN for what never
    happened) and tokens as floats. ``statuses``: how many requests ended how; ``tenants``: whose they are, with what
    each was promised."""

    columns: dict[str, FloatColumn]
    finished: npt.NDArray[np.bool_]
    statuses: dict[str, int]
    tenants: Tenants | None = None

    def __len__(self) -> int:
        return len(self.finished)

    def same_as(self, other: Requests) -> bool:
        """Whether both runs met the same requests: equal arrivals, prompts and answers."""
        met = ("arrival_s", "num_prompt_tokens", "num_output_tokens")
        return all(np.array_equal(self.columns[name], other.columns[name]) for name in met)

    def digest(self) -> int:
        """A number that depends on all columns: the seed of whatever is drawn from these requests alone."""
        content = hashlib.sha256()
        for name in sorted(self.columns):
            content.update(name.encode() + self.columns[name].tobytes())
        return int.from_bytes(content.digest()[:8], "big")


def read_requests(run: Run, variant: str) -> Requests:
    """Requests of a variant of ``run``. Raises RunError when the file is torn, lacks a column, or holds another number
    of rows than the summary says. Columns that only newer runs have are not asked for."""
    path = run.folder / REQUESTS
    try:
        present = pq.read_schema(path).names
        missing = [name for name in COLUMNS if name not in present]
        if missing:
            raise RunError(f"{path}: must have a column {missing[0]!r} (it is not a run's); run it again")
        wanted = [*COLUMNS, *([TENANT] if TENANT in present else [])]
        table = pq.read_table(path, columns=wanted, filters=pc.field("variant") == variant)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise RunError(f"{path}: cannot be read ({reason}); run it again") from None
    expected = run.summary["variants"][variant].get("num_requests")
    if table.num_rows != expected:
        raise RunError(f"{path}: must have {expected} rows of {variant!r} (got {table.num_rows}); run it again")
    return _in_order(table, run.manifest["variants"][variant].get("resolved_scenario") or {})


def _in_order(table: pa.Table, scenario: Mapping[str, Any]) -> Requests:
    order = np.lexsort((_floats(table, "request_id"), _floats(table, "arrival_s")))
    status = np.asarray(table["status"].cast(pa.string()).to_numpy(zero_copy_only=False), dtype=object)[order]
    names, counts = np.unique(status.astype(str), return_counts=True)
    found = dict(zip(names.tolist(), counts.tolist(), strict=True))
    columns = {name: _floats(table, name)[order] for name in (*FLOATS, *SIZES)}
    tenants = _tenants(table, order, scenario) if TENANT in table.column_names else None
    return Requests(columns, status == "finished", {**dict.fromkeys(STATUSES, 0), **found}, tenants)


def _tenants(table: pa.Table, order: IntColumn, scenario: Mapping[str, Any]) -> Tenants:
    """Whose each request is; limits are those that the run's scenario gives a tenant of that name."""
    names = np.asarray(table[TENANT].cast(pa.string()).fill_null("").to_numpy(zero_copy_only=False), dtype=str)
    each, of = np.unique(names, return_inverse=True)
    workload = scenario.get("workload") or {}
    slos = {name: tenant.get("slo") for name, tenant in (workload.get("tenants") or {}).items()}
    slos |= workload.get("tenant_slos") or {}
    known = {name: {key: slo.get(key) for key in Tenant._fields[1:]} for name, slo in slos.items() if slo}
    return Tenants(tuple(Tenant(name, **known.get(name, {})) for name in each.tolist()), of[order])


def _floats(table: pa.Table, name: str) -> FloatColumn:
    return np.asarray(table[name].cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
