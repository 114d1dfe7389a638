"""``simserve trace servegen``: a pool of clients to the tenants of a scenario, and who they are."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from simserve.errors import TraceError
from simserve.scenario.messages import printable
from simserve.trace_tools.amounts import seconds
from simserve.trace_tools.fit_command import require_new, write_section
from simserve.trace_tools.pool_tenants import PoolPart, PoolTenant, day_s, pool_tenants
from simserve.trace_tools.servegen import read_pool
from simserve.trace_tools.show import WIDTH_IN_A_PIPE, duration

SCHEMA_VERSION = 1


class AskedPool(NamedTuple):
    """What of a pool, as typed."""

    begin: str = "0"
    end: str | None = None
    most: int = 20
    rate_rps: float | None = None


def write_tenants(path: Path, out: Path | None, asked: AskedPool, as_json: bool) -> None:
    """Write ``workload:`` with a tenant for each client. Raises TraceError, one sentence."""
    require_new(out)
    with Console(stderr=True).status(printable(f"reading {path.name}")):
        pool = read_pool(path)
        from_s, day = seconds("--from", asked.begin), day_s(pool)
        to_s = day if asked.end is None else min(seconds("--to", asked.end), day)
        if not from_s < to_s:
            raise TraceError(f"--to: must be later than --from, in a day of {day:g} s (got {from_s:g} to {to_s:g} s)")
        tenants = pool_tenants(pool, PoolPart(from_s, to_s, asked.most, asked.rate_rps))
    total = round(sum(tenant.num_requests for tenant in tenants))
    workload = {"num_requests": total, "tenants": {tenant.name: tenant.section for tenant in tenants}}
    head = printable(f"# {path.name} from {from_s:g} to {to_s:g} s of its day: {len(pool)} clients")
    body = yaml.safe_dump({"workload": workload}, sort_keys=False, default_flow_style=None, width=110)
    text = f"{head}\n{body}"
    if out is not None:
        write_section(text, out)
    if as_json:
        told = [tenant._asdict() | {"section": None} for tenant in tenants]
        _print_json({"schema_version": SCHEMA_VERSION, "pool": path.name, "tenants": told, "workload": workload})
        return
    _show(tenants, f"{path.name}: {len(pool)} clients, {total:,} requests in {duration(to_s - from_s)}", Console())
    sys.stdout.write(printable(f"wrote {out}: put it in place of a scenario's workload") + "\n" if out else f"\n{text}")


def _print_json(document: dict[str, Any]) -> None:
    for tenant in document["tenants"]:
        del tenant["section"]
    sys.stdout.write(jsonlib.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _show(tenants: list[PoolTenant], title: str, console: Console) -> None:
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_IN_A_PIPE)
    table = Table(title=printable(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for heading in ("tenant", "requests", "share", "cv of gaps", "mean prompt", "mean output"):
        table.add_column(heading, justify="left" if heading == "tenant" else "right")
    total = sum(tenant.num_requests for tenant in tenants)
    for each in tenants:
        shares = (f"{each.num_requests:,.0f}", f"{each.num_requests / total:.1%}", f"{each.cv:.3g}")
        table.add_row(each.name, *shares, f"{each.mean_prompt_tokens:,.0f}", f"{each.mean_output_tokens:,.0f}")
    console.print(table)
    console.print(
        "  in the generator each client has one distribution of prompts and one of answers, drawn apart",
        highlight=False,
        soft_wrap=True,
    )
