"""``slo:`` of a scenario, or of one of its tenants: the latencies that a request must keep to count as goodput."""

from __future__ import annotations

from pydantic import Field

from simserve.scenario.fields import Seconds, Strict


class SloConfig(Strict):
    """Limits that a request must meet to count as goodput; what is null is not asked for."""

    ttft_s: Seconds | None = Field(None, description="time to first token, seconds")
    tpot_s: Seconds | None = Field(None, description="time per output token after the first, seconds")
    e2e_s: Seconds | None = Field(None, description="arrival to last token, seconds")
