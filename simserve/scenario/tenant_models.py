"""``workload.tenants.NAME`` with a trace of its own, in place of distributions."""

from __future__ import annotations

from pydantic import Field

from simserve.scenario.fields import Strict, Tokens
from simserve.scenario.slo_models import SloConfig
from simserve.scenario.trace_models import ResampleConfig, TenantTracePath, TraceFormat


class TracedTenant(Strict):
    """A tenant who sends the requests of a trace at their own times, the first at 0, once: when they are over, it sends
    no more. Without ``resample`` they are the same whatever the seed."""

    trace: TenantTracePath = Field(
        description="path of the trace, relative to this file; one whose requests have times"
    )
    format: TraceFormat = Field("auto", description="whose columns the trace has; auto: told from the columns")
    limit: int | None = Field(None, ge=1, description="only its first so many requests by arrival; null: all")
    rate_scale: float = Field(
        1.0, gt=0, le=1e9, description="2.0 sends them twice as fast; the workload's rate_scale comes on top"
    )
    max_output_tokens: Tokens | None = Field(
        None, description="what its clients declare where the trace has no such column; null: its longest output"
    )
    resample: ResampleConfig | None = Field(
        None, description="draw another trace like this one, by the seed; null: replay it as it is"
    )
    priority: int | None = Field(
        None, ge=-(2**31), lt=2**31, description="of all its requests, lower goes first; null: the trace's own"
    )
    slo: SloConfig = Field(
        default_factory=SloConfig, description="its own limits for goodput, in place of the scenario's where given"
    )
