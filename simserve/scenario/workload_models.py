"""``workload:`` of a scenario: a generator (arrivals and lengths by distribution), a trace, or a mixture of tenants.

A generator and a trace are an open loop (requests come at their own times) or, with ``concurrency``, a closed one.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from simserve.scenario.arrival_models import BurstArrivals, DiurnalArrivals, WeibullArrivals, WindowedArrivals
from simserve.scenario.choice import Choice
from simserve.scenario.client_models import ClientKeys
from simserve.scenario.fields import MAX_REQUESTS, Name, Rate, Strict, Tokens
from simserve.scenario.length_models import LengthCorrelation, LengthsConfig, LengthTable, ValuesLength
from simserve.scenario.prefix_models import SharedPrefixes
from simserve.scenario.session_models import SessionsConfig
from simserve.scenario.slo_models import SloConfig
from simserve.scenario.tenant_models import TracedTenant
from simserve.scenario.trace_models import ResampleConfig, TraceFormat, TracePath


class PoissonArrivals(Strict):
    """Independent arrivals: exponential gaps (cv 1)."""

    process: Literal["poisson"]
    rate_rps: Rate = Field(description="mean arrivals per second")


class GammaArrivals(Strict):
    """Gamma-distributed gaps: cv above 1 is burstier than Poisson, below 1 is smoother, 1 is Poisson."""

    process: Literal["gamma"]
    rate_rps: Rate = Field(description="mean arrivals per second")
    cv: float = Field(gt=0, le=100, description="standard deviation of the gaps over their mean; the shape is 1/cv²")


class ConstantArrivals(Strict):
    """Request i arrives at i / rate_rps."""

    process: Literal["constant"]
    rate_rps: Rate = Field(description="arrivals per second")


class AllAtOnceArrivals(Strict):
    """Everybody arrives at time 0."""

    process: Literal["all_at_once"]


ARRIVALS = Choice(
    {
        "poisson": PoissonArrivals,
        "gamma": GammaArrivals,
        "weibull": WeibullArrivals,
        "constant": ConstantArrivals,
        "all_at_once": AllAtOnceArrivals,
        "windows": WindowedArrivals,
        "diurnal": DiurnalArrivals,
        "bursts": BurstArrivals,
    },
    key="process",
)
ArrivalsConfig = Annotated[
    Annotated[PoissonArrivals, Tag("<poisson>")]
    | Annotated[GammaArrivals, Tag("<gamma>")]
    | Annotated[WeibullArrivals, Tag("<weibull>")]
    | Annotated[ConstantArrivals, Tag("<constant>")]
    | Annotated[AllAtOnceArrivals, Tag("<all_at_once>")]
    | Annotated[WindowedArrivals, Tag("<windows>")]
    | Annotated[DiurnalArrivals, Tag("<diurnal>")]
    | Annotated[BurstArrivals, Tag("<bursts>")],
    Discriminator(ARRIVALS.tag),
]


def _require_one_way(output_tokens: LengthsConfig, length_correlation: float, length_table: object) -> None:
    """Prompts and answers go together in one way, or in none, and answers may be moved about."""
    if length_table is not None and length_correlation:
        raise ValueError(f"length_correlation must be 0 with a length_table (got {length_correlation:g})")
    if length_table is not None and isinstance(output_tokens, ValuesLength) and not output_tokens.shuffle:
        raise ValueError(
            "length_table must be null where output_tokens come in the order listed; leave shuffle: false out"
        )
    if length_correlation and isinstance(output_tokens, ValuesLength) and not output_tokens.shuffle:
        raise ValueError(
            f"length_correlation must be 0 where output_tokens come in the order listed (got {length_correlation:g}); "
            "leave shuffle: false out"
        )


class GeneratedWorkload(ClientKeys):
    """Requests drawn from distributions. Arrivals, lengths and each thing that clients do at random have a random
    stream of their own, so a change of one leaves the others' draws as they were."""

    num_requests: int = Field(ge=1, le=MAX_REQUESTS, description="how many requests arrive")
    arrivals: ArrivalsConfig | None = Field(
        None, description="open loop: when the requests, or sessions, arrive (give this or concurrency)"
    )
    prompt_tokens: LengthsConfig = Field(description="distribution of num_prompt_tokens")
    output_tokens: LengthsConfig = Field(description="distribution of num_output_tokens")
    length_correlation: LengthCorrelation = 0.0
    length_table: LengthTable = None
    max_output_tokens: Tokens | None = Field(
        None, description="what every client declares as its maximum; null: the workload's longest output"
    )
    shared_prefixes: SharedPrefixes = Field(
        default_factory=list,
        description="system prompts that shares of the requests begin with, on top of prompt_tokens; engines with "
        "prefix_caching find them again; of sessions, shares of these",
    )
    sessions: SessionsConfig | None = Field(
        None, description="requests come as turns of sessions, num_requests of them in all; null: each on its own"
    )

    @model_validator(mode="after")
    def _open_or_closed(self) -> Self:
        if (self.arrivals is None) == (self.concurrency is None):
            given = "neither" if self.arrivals is None else "both"
            raise ValueError(f"give exactly one of arrivals and concurrency (got {given})")
        _require_one_way(self.output_tokens, self.length_correlation, self.length_table)
        if self.sessions is not None and self.length_correlation:
            raise ValueError(f"length_correlation must be 0 with sessions (got {self.length_correlation:g})")
        if self.sessions is not None and self.length_table is not None:
            raise ValueError("length_table must be null with sessions")
        return self


class TenantConfig(Strict):
    """One tenant's requests. Every tenant has random streams of its own, known by its name: others come and go without
    changing what it sends."""

    arrivals: ArrivalsConfig = Field(description="when its requests arrive; its first comes one gap after 0")
    prompt_tokens: LengthsConfig = Field(description="distribution of num_prompt_tokens")
    output_tokens: LengthsConfig = Field(description="distribution of num_output_tokens")
    length_correlation: LengthCorrelation = 0.0
    length_table: LengthTable = None
    max_output_tokens: Tokens | None = Field(
        None, description="what its clients declare as their maximum; null: this tenant's longest output"
    )
    shared_prefixes: SharedPrefixes = Field(
        default_factory=list,
        description="system prompts that shares of its requests begin with, on top of prompt_tokens; no other tenant "
        "has them",
    )
    priority: int = Field(
        0, ge=-(2**31), lt=2**31, description="of all its requests; lower goes first, with queue_order: priority"
    )
    slo: SloConfig = Field(
        default_factory=SloConfig, description="its own limits for goodput, in place of the scenario's where given"
    )

    @model_validator(mode="after")
    def _has_a_rate(self) -> Self:
        if isinstance(self.arrivals, AllAtOnceArrivals):
            raise ValueError("arrivals.process must have a rate, so that tenants can be mixed (got all_at_once)")
        _require_one_way(self.output_tokens, self.length_correlation, self.length_table)
        return self


TENANTS = Choice(
    {"trace": TracedTenant, "generated": TenantConfig}, marks={"generated": "arrivals"}, otherwise="generated"
)
AnyTenant = Annotated[
    Annotated[TracedTenant, Tag("<trace>")] | Annotated[TenantConfig, Tag("<generated>")], Discriminator(TENANTS.tag)
]


class TenantsWorkload(ClientKeys):
    """Several tenants who share an engine: their arrivals laid over each other, the first ``num_requests`` of them."""

    num_requests: int = Field(ge=1, le=MAX_REQUESTS, description="how many requests arrive, of all tenants together")
    tenants: dict[Name, AnyTenant] = Field(min_length=1, max_length=1000, description="each tenant, by its name")
    rate_scale: float = Field(1.0, gt=0, le=1e9, description="2.0 doubles the rate of every tenant")

    @model_validator(mode="after")
    def _open_loop(self) -> Self:
        if self.concurrency is not None:
            raise ValueError(f"tenants come at their own times: leave concurrency out (got {self.concurrency})")
        return self


class TraceWorkload(ClientKeys):
    """Requests read from a trace file: csv, jsonl or parquet, gzipped or not. With ``concurrency`` they are sent in the
    trace's order, and its times are not used."""

    trace: TracePath = Field(
        description="path of the trace, relative to this file; or give it by --set workload.trace=FILE"
    )
    format: TraceFormat = Field(
        "auto",
        description="whose columns the trace has; auto: told from the columns. azure: dates, lengths. mooncake: ms, "
        "hashes of 512-token blocks; bailian: the same keys, but seconds and 16 tokens. llmservingsim: ns, token ids. "
        "burstgpt, vidur (times may lack), splitwise: seconds, lengths. tracelab (ms), tracelab_log: rounds of agents. "
        "simserve (our own): arrival_s, num_prompt_tokens, num_output_tokens, and where known max_output_tokens, "
        "priority, tenant, session_id, wait_s (after the answer before it there), kept_tokens (of the prompt and "
        "answer before it there, with which its prompt begins), prefix_hashes (a list per prompt of 64-bit ids, one "
        "per prefix_block_tokens tokens, by default 16)",
    )
    limit: int | None = Field(None, ge=1, description="keep only the first so many requests by arrival; null: all")
    rate_scale: float = Field(
        1.0, gt=0, le=1e9, description="2.0 offers the trace twice as fast: arrival times are divided by it"
    )
    max_output_tokens: Tokens | None = Field(
        None,
        description="what clients declare where the trace has no such column; null: the workload's longest output",
    )
    tenant_slos: dict[Name, SloConfig] = Field(
        default_factory=dict,
        max_length=1000,
        description="limits of the tenants that the trace's column tenant names, in place of the scenario's slo",
    )
    resample: ResampleConfig | None = Field(
        None, description="draw another trace like this one, by the seed; null: replay it as it is"
    )
    sessions_continue: bool | None = Field(
        None,
        description="true: in a session every turn as long as the prompt and answer before it begins with these; "
        "false: nothing is known but what the trace tells; null: true where turns wait for the answer before them",
    )
    shared_prefixes: SharedPrefixes = Field(
        default_factory=list,
        description="what shares of the prompts begin with, where the trace does not tell: the first tokens of prompts "
        "as long as they are; shorter ones have none",
    )

    @model_validator(mode="after")
    def _times_are_used(self) -> Self:
        if self.concurrency is not None and self.rate_scale != 1.0:
            raise ValueError(
                "rate_scale must be 1.0 with concurrency, which does not use the trace's times "
                f"(got {self.rate_scale:g}); raise concurrency to offer more"
            )
        return self


WORKLOADS = Choice(
    {"trace": TraceWorkload, "tenants": TenantsWorkload, "generated": GeneratedWorkload},
    marks={"generated": "arrivals"},
    otherwise="generated",
)
WorkloadConfig = Annotated[
    Annotated[TraceWorkload, Tag("<trace>")]
    | Annotated[TenantsWorkload, Tag("<tenants>")]
    | Annotated[GeneratedWorkload, Tag("<generated>")],
    Discriminator(WORKLOADS.tag),
]
