"""``engine:`` of a scenario: the batching policy, its limits, and the KV cache.

Rules of the policies: static batching; iteration-level scheduling with prefill first (Orca, OSDI'22; vLLM v0); chunked
prefill under one token budget (Sarathi-Serve, OSDI'24; vLLM v1); transformers' continuous batching (5.24). Paged cache:
PagedAttention (SOSP'23).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, GetJsonSchemaHandler, Tag, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from simserve.scenario.choice import Choice
from simserve.scenario.fields import MAX_REQUESTS, MAX_SECONDS, MAX_TOKENS, Bytes, Room, Strict
from simserve.scenario.model_models import SchemeName
from simserve.scenario.speculation_models import SpeculationConfig, check_speculation

Dtype = Literal["fp32", "bf16", "fp16", "fp8", "int8"]
CAPACITIES = ("num_blocks", "memory", "device_memory")


class SwapConfig(Strict):
    """Where preempted sequences go under ``preemption: swap``."""

    space: Bytes = Field(description="room for swapped blocks, such as 4GiB; when it is full a victim recomputes")
    bandwidth_bytes_per_s: float = Field(gt=0, le=1e15, description="speed of the link, each way")


class CacheCapacity(Strict):
    """What every allocator shares. Capacity in tokens is num_blocks × block_size, the same bytes for all."""

    block_size: int = Field(16, ge=1, le=65_536, description="tokens per block")
    num_blocks: int | None = Field(
        None,
        ge=1,
        le=MAX_TOKENS,
        description="blocks in the cache, the engine's own figure (give this, memory or device_memory)",
    )
    memory: Bytes | None = Field(
        None,
        description="bytes for the cache, such as 8GiB (2³⁰ each) or 8GB (10⁹ each), of all devices together (give "
        "this, num_blocks or device_memory)",
    )
    device_memory: Bytes | None = Field(
        None,
        description="memory of all devices together (48GiB for two cards of 24GiB; simserve memory asks for one's), "
        "off which the scenario's weights, a draft's and overhead come first",
    )
    weights: SchemeName | None = Field(
        None, description="with memory: makes it device_memory, from which weights kept so come off (int8, int4, …)"
    )
    overhead: Room | None = Field(
        None,
        description="what each device keeps for activations and the like, with device_memory, or memory and weights; "
        "null: 1.5GiB",
    )
    dtype: Dtype | None = Field(None, description="type of the cached numbers; null: the step time's")

    @model_validator(mode="after")
    def _one_capacity(self) -> Self:
        given = [key for key in CAPACITIES if getattr(self, key) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise ValueError(f"give exactly one of {', '.join(CAPACITIES)} (got {got})")
        if self.num_blocks is not None and self.weights is not None:
            raise ValueError("weights: goes with memory or device_memory (got num_blocks)")
        if self.overhead is not None and not self.holds_weights:
            raise ValueError(f"overhead: goes with device_memory, or memory and weights (got {given[0]} alone)")
        return self

    @property
    def holds_weights(self) -> bool:
        """Whether the memory given is that of devices, which hold the model's weights too."""
        return self.device_memory is not None or self.weights is not None


class PagedCacheConfig(CacheCapacity):
    """Fixed blocks and a block table per sequence."""

    allocator: Literal["paged"]
    watermark: float = Field(
        0.01, ge=0, lt=1, description="share of the blocks that admission leaves free, so that running sequences grow"
    )
    null_blocks: int = Field(0, ge=0, description="blocks of num_blocks that hold nothing (vLLM v1 keeps one)")
    prefix_caching: bool = Field(
        False,
        description="full blocks keep what they hold after they are given back, and requests that begin alike do not "
        "compute it again (which prompts do, a trace with prompt contents says)",
    )
    nameless_first: bool = Field(
        False,
        description="with prefix_caching: hand out free blocks that nobody can find before those that hold a beginning "
        "(vLLM 0.32); false: in the order in which they were given back (vLLM 0.19)",
    )
    preemption: Literal["recompute", "swap"] = Field(
        "recompute", description="out of blocks: drop a sequence's cache and compute it again, or move it out and back"
    )
    swap: SwapConfig | None = Field(None, description="required by preemption: swap")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.preemption == "swap" and self.swap is None:
            raise ValueError("preemption: swap needs swap: {space: 4GiB, bandwidth_bytes_per_s: …}")
        if self.preemption != "swap" and self.swap is not None:
            raise ValueError("swap: is used by preemption: swap only (got preemption: recompute)")
        if self.prefix_caching and self.preemption == "swap":
            raise ValueError("prefix_caching works with preemption: recompute only (got swap)")
        if self.nameless_first and not self.prefix_caching:
            raise ValueError("nameless_first: is used by prefix_caching: true only (got prefix_caching: false)")
        if self.num_blocks is not None and self.null_blocks >= self.num_blocks:
            raise ValueError(f"null_blocks must be < num_blocks (got {self.null_blocks} of {self.num_blocks})")
        return self


class ContiguousCacheConfig(CacheCapacity):
    """One address range per request, first fit, reserved whole at admission."""

    allocator: Literal["contiguous"]
    reserve: Literal["max_model_len", "max_tokens", "oracle"] = Field(
        "max_tokens",
        description="range per request: the longest context there is; prompt + declared maximum; or (oracle) the "
        "true length, which no real engine knows",
    )


class NoCacheConfig(Strict):
    """Nothing is kept: every step computes all known tokens of every sequence again (policy static or continuous)."""

    allocator: Literal["none"]


ALLOCATORS = Choice(
    {"paged": PagedCacheConfig, "contiguous": ContiguousCacheConfig, "none": NoCacheConfig}, key="allocator"
)


def _written_out(section: object) -> object:
    """``none`` is short for ``{allocator: none}``."""
    if not isinstance(section, str):
        return section
    if section != "none":
        raise ValueError("must be a mapping, or none for an engine without a cache")
    return {"allocator": "none"}


class _OrNone:
    """The same for the JSON schema that editors read."""

    @staticmethod
    def __get_pydantic_json_schema__(schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"const": "none"}, handler(schema)]}


CacheConfig = PagedCacheConfig | ContiguousCacheConfig
KvCacheConfig = Annotated[
    Annotated[PagedCacheConfig, Tag("<paged>")]
    | Annotated[ContiguousCacheConfig, Tag("<contiguous>")]
    | Annotated[NoCacheConfig, Tag("<none>")],
    Discriminator(ALLOCATORS.tag),
    BeforeValidator(_written_out),
    _OrNone(),
]


class EngineLimits(Strict):
    """What every policy shares: the limits of one step, the order of the queue, the cache."""

    max_num_seqs: int = Field(256, ge=1, le=65_536, description="slots: sequences in one step, at most")
    max_num_batched_tokens: int = Field(2048, ge=1, le=MAX_TOKENS, description="tokens that one step computes, at most")
    max_model_len: int = Field(8192, ge=2, le=MAX_TOKENS, description="prompt + output of a request, at most, tokens")
    queue_order: Literal["fcfs", "priority", "shortest_job_oracle"] = Field(
        "fcfs", description="who waits in front: first come; lowest priority number; (oracle) shortest true output"
    )
    max_queued_requests: int | None = Field(
        None,
        ge=1,
        le=MAX_REQUESTS,
        description="an arrival that finds so many waiting is answered 429, Too Many Requests; null: nobody is",
    )
    retry_after_s: float = Field(
        1.0, ge=0, le=MAX_SECONDS, description="the Retry-After of a 429: a client comes again no sooner, seconds"
    )
    speculation: SpeculationConfig | None = Field(
        None, description="verify several drafted tokens per sequence and step; null: decode one token at a time"
    )
    kv_cache: KvCacheConfig

    @model_validator(mode="after")
    def _speculation_fits(self) -> Self:
        check_speculation(self)
        return self


class StaticEngineConfig(EngineLimits):
    """Collect a group, prefill it together padded to the longest, decode until the longest answer ends."""

    policy: Literal["static"]
    max_wait_s: float | None = Field(
        None, ge=0, le=MAX_SECONDS, description="start a partial group after so long; null: wait for a full group"
    )

    @model_validator(mode="after")
    def _computes_whole_prompts(self) -> Self:
        if isinstance(self.kv_cache, PagedCacheConfig) and self.kv_cache.prefix_caching:
            raise ValueError(
                "kv_cache.prefix_caching works with policy: continuous or chunked only (got static, which pads prompts)"
            )
        return self

    @model_validator(mode="after")
    def _a_group_can_gather(self) -> Self:
        limit = self.max_queued_requests
        if limit is not None and limit < self.max_num_seqs and self.max_wait_s is None:
            raise ValueError(
                "max_queued_requests must be ≥ max_num_seqs, or a full group could never gather "
                f"(got {limit} and {self.max_num_seqs}); or give max_wait_s"
            )
        return self


class IterationLevelLimits(EngineLimits):
    """What policies share that decide anew at every step: all slots must be able to decode together."""

    @model_validator(mode="after")
    def _budget_covers_decodes(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                "max_num_batched_tokens must be ≥ max_num_seqs, or a full batch could not decode in one step "
                f"(got {self.max_num_batched_tokens} and {self.max_num_seqs})"
            )
        return self


class ContinuousEngineConfig(IterationLevelLimits):
    """At every step free slots admit the head of the queue; steps that prefill go first and decodes wait."""

    policy: Literal["continuous"]


class ChunkedEngineConfig(IterationLevelLimits):
    """One token budget per step: running sequences first, then prompts in chunks that fill the budget."""

    policy: Literal["chunked"]
    async_scheduling: bool = Field(
        False,
        description="decide the next step while one runs (vLLM's flag): slots and arrivals are seen one step late",
    )

    @model_validator(mode="after")
    def _keeps_a_cache(self) -> Self:
        if isinstance(self.kv_cache, NoCacheConfig):
            raise ValueError(
                "kv_cache: none works with policy: static or continuous only (got chunked, and without a cache there "
                "is nothing to go on from)"
            )
        return self


class TransformersEngineConfig(EngineLimits):
    """What transformers' continuous batching decides (scheduler fifo): who finds no block misses steps or is reset."""

    policy: Literal["transformers"]
    safety_margin: float = Field(
        0.15,
        ge=0,
        le=1,
        description="with a smaller share of the blocks free, no prefill is taken beside others; kv_cache.watermark is "
        "not used",
    )

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if not isinstance(self.kv_cache, PagedCacheConfig):
            raise ValueError(f"policy: transformers needs kv_cache.allocator: paged (got {self.kv_cache.allocator})")
        if self.kv_cache.prefix_caching:
            raise ValueError("policy: transformers works without kv_cache.prefix_caching only (got true)")
        if self.kv_cache.preemption == "swap":
            raise ValueError("policy: transformers works with kv_cache.preemption: recompute only (got swap)")
        if self.queue_order != "fcfs":
            raise ValueError(f"policy: transformers works with queue_order: fcfs only (got {self.queue_order})")
        return self


POLICIES = Choice(
    {
        "static": StaticEngineConfig,
        "continuous": ContinuousEngineConfig,
        "chunked": ChunkedEngineConfig,
        "transformers": TransformersEngineConfig,
    },
    key="policy",
)
EngineConfig = Annotated[
    Annotated[StaticEngineConfig, Tag("<static>")]
    | Annotated[ContinuousEngineConfig, Tag("<continuous>")]
    | Annotated[ChunkedEngineConfig, Tag("<chunked>")]
    | Annotated[TransformersEngineConfig, Tag("<transformers>")],
    Discriminator(POLICIES.tag),
]
