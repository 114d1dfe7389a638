"""Which model a variant simulates: its KV heads, the weights that steps are timed with, and the room for its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simserve.draft_model import DraftModel, draft_model
from simserve.errors import ScenarioError
from simserve.memory.footprint import DEFAULT_OVERHEAD_BYTES, cache_bytes, kv_bytes_per_token
from simserve.memory.schemes import WeightScheme, parse_scheme, weight_bytes
from simserve.memory.sizes import size_text
from simserve.model_spec import ModelSpec, load_model_spec
from simserve.scenario import (
    CacheConfig,
    OperatorsStepTimeConfig,
    ProfileStepTimeConfig,
    RooflineStepTimeConfig,
    Scenario,
)
from simserve.scenario.model_models import AttentionConfig, KvHeads
from simserve.step_time.operators import load_operators
from simserve.step_time.profile_schema import load_profile
from simserve.step_time.profile_weights import measured_scheme, require_weights


@dataclass(frozen=True)
class SimulatedModel:
    """A model as a scenario's switches leave it.

    ``spec`` has the scenario's KV heads, ``own_kv_heads`` are those that the model was made with. ``weights`` are those
    that steps are timed with, ``held_weights`` those that memory is counted with: others only where
    ``kv_cache.weights`` alone says so (None: a measured type that has no name here). ``dtype`` is what products compute
    in, ``tensor_parallel`` the devices that share the model; steps are ``measured`` or estimated. ``draft`` is a second
    model in the same memory, ``note`` says what is not counted.
    """

    spec: ModelSpec
    own_kv_heads: int
    weights: WeightScheme | None
    held_weights: WeightScheme | None
    dtype: str
    kv_dtype: str
    tensor_parallel: int
    measured: bool = False
    draft: DraftModel | None = None
    note: str | None = None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a cached token on all devices together, copies of KV heads included."""
        return kv_bytes_per_token(self.spec, self.kv_dtype, self.tensor_parallel)

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of the weights in memory; None where their type is not known."""
        return None if self.held_weights is None else weight_bytes(self.spec, self.held_weights)

    def changes(self) -> list[str]:
        """What a reader must know: heads, weights and memory that are not the model's or the step times' own."""
        found = []
        if self.spec.num_kv_heads != self.own_kv_heads:
            found.append(f"{_heads(self.spec.num_kv_heads)} instead of the model's own {self.own_kv_heads}")
        if self.weights is not None and self.weights.name != self.dtype:
            cost = "as measured" if self.measured else "without time for unpacking them"
            found.append(f"weights kept as {self.weights.label} and multiplied in {self.dtype}, {cost}")
        if self.held_weights is not None and self.held_weights != self.weights:
            timed = self.dtype if self.weights is None else self.weights.label
            found.append(f"memory counted with weights in {self.held_weights.label}, steps timed with {timed}")
        return found if self.note is None else [*found, self.note]

    def entry(self) -> dict[str, Any]:
        """What ``summary.json`` and the manifest say of it."""
        weights, held = self.weights, self.held_weights
        return {
            "num_parameters": self.spec.num_parameters,
            "weights": self.dtype if weights is None else weights.name,
            "bits_per_weight": None if weights is None else weights.bits_per_weight,
            "weights_in_memory": self.dtype if held is None else held.name,
            "weight_bytes": self.weight_bytes,
            "num_attention_heads": self.spec.num_attention_heads,
            "num_kv_heads": self.spec.num_kv_heads,
            "own_num_kv_heads": self.own_kv_heads,
            "kv_dtype": self.kv_dtype,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "draft": None if self.draft is None else self.draft.entry(),
            "changes": self.changes(),
        }


def simulated_model(scenario: Scenario) -> SimulatedModel:
    """The model of a scenario (of one variant). Raises InputError: no such model, heads that cannot be, or step times
    that were measured with other heads or weights."""
    own = load_model_spec(scenario.locate(scenario.model))
    spec = _with_heads(own, scenario.attention)
    weights, dtype, tensor_parallel = _timed_with(scenario, own, spec)
    cache = scenario.engine.kv_cache
    held = getattr(cache, "weights", None)
    draft = draft_model(scenario)
    return SimulatedModel(
        spec=spec,
        own_kv_heads=own.num_kv_heads,
        weights=weights,
        held_weights=weights if held is None else parse_scheme(held),
        dtype=dtype,
        kv_dtype=getattr(cache, "dtype", None) or dtype,
        tensor_parallel=tensor_parallel,
        measured=not isinstance(scenario.step_time, RooflineStepTimeConfig),
        draft=draft,
        note=_uncounted(scenario, draft),
    )


def cache_blocks(cache: CacheConfig, model: SimulatedModel) -> int:
    """Blocks of a scenario's cache: the number given, or the whole blocks that its memory has room for. Raises
    ScenarioError if there is not one."""
    if cache.num_blocks is not None:
        return cache.num_blocks
    block_bytes = cache.block_size * model.kv_bytes_per_token
    memory = cache.memory or cache.device_memory or 0
    if not cache.holds_weights:
        if memory < block_bytes:
            raise ScenarioError(
                f"engine.kv_cache.memory: must hold at least one block of {block_bytes} bytes (got {memory})"
            )
        return memory // block_bytes
    where = "engine.kv_cache.memory" if cache.memory else "engine.kv_cache.device_memory"
    held, scheme, draft = model.weight_bytes, model.held_weights, model.draft
    if held is None or scheme is None:
        raise ScenarioError(
            f"{where}: must have weights beside it, for {model.dtype!r} is no scheme that is known here"
        )
    devices = model.tensor_parallel
    overhead = DEFAULT_OVERHEAD_BYTES if cache.overhead is None else cache.overhead
    left = cache_bytes(memory // devices, held, overhead, devices)
    beside = ""
    if draft is not None:
        left -= draft.weight_bytes
        block_bytes += cache.block_size * draft.kv_bytes_per_token
        beside = f", of its draft {draft.spec.name} in {draft.weights.label} ({size_text(draft.weight_bytes)})"
    if left < block_bytes:
        each = f" on each of {devices} devices" if devices > 1 else ""
        together = f" of all {devices} devices together" if devices > 1 else ""
        raise ScenarioError(
            f"{where}: must hold the weights of {model.spec.name} in {scheme.label} ({size_text(held)}){beside}, "
            f"{size_text(overhead)} of overhead{each} and at least one block of cache (got {size_text(memory)}"
            f"{together}); take smaller weights or more memory"
        )
    return left // block_bytes


def _uncounted(scenario: Scenario, draft: DraftModel | None) -> str | None:
    """What a reader must know where a device's memory is shared out and a draft is in it whose size nobody told."""
    engine = scenario.engine
    if engine.speculation is None or draft is not None or not getattr(engine.kv_cache, "holds_weights", False):
        return None
    return "the draft's own weights and cache are not counted in the memory: it is not named, or on other hardware"


def _with_heads(own: ModelSpec, attention: AttentionConfig | None) -> ModelSpec:
    heads = own.num_attention_heads
    if attention is None:
        return own
    if isinstance(attention, KvHeads):
        if heads % attention.kv_heads:
            rule = f"must divide the {heads} attention heads of {own.name}"
            raise ScenarioError(f"attention.kv_heads: {rule} (got {attention.kv_heads})")
        return own.with_kv_heads(attention.kv_heads)
    if attention != "gqa":
        return own.with_kv_heads(heads if attention == "mha" else 1)
    if not 1 < own.num_kv_heads < heads:
        raise ScenarioError(
            f"attention: must say how many KV heads, such as {{kv_heads: {_some_divisor(heads)}}} (got gqa, and "
            f"{own.name} has no groups of its own: {_heads(own.num_kv_heads)} for {heads} attention heads)"
        )
    return own


def _heads(num: int) -> str:
    return f"{num} KV head{'s' * (num != 1)}"


def _some_divisor(heads: int) -> int:
    """A number of groups to suggest: the divisor nearest to eight."""
    return min((each for each in range(1, heads + 1) if heads % each == 0), key=lambda each: abs(each - 8))


def _timed_with(scenario: Scenario, own: ModelSpec, spec: ModelSpec) -> tuple[WeightScheme | None, str, int]:
    """The weights of the step times, the dtype of their products, and the devices. Raises InputError when they are not
    those that the scenario asks for."""
    config = scenario.step_time
    wanted = None if scenario.weights is None else parse_scheme(scenario.weights)
    if isinstance(config, ProfileStepTimeConfig):
        profile = load_profile(scenario.locate(config.profile), spec)
        if wanted is not None:
            require_weights(profile, wanted, config.profile)
        return measured_scheme(profile), profile.provenance.dtype, profile.provenance.tensor_parallel
    if not isinstance(config, OperatorsStepTimeConfig):
        return wanted or parse_scheme(config.dtype), config.dtype, config.tensor_parallel
    if spec.num_kv_heads != own.num_kv_heads:
        raise ScenarioError(
            f"attention: must be left out with operator tables, measured with the {_heads(own.num_kv_heads)} of "
            f"{own.name} (got {spec.num_kv_heads}); or take a roofline"
        )
    told = load_operators(scenario.base_dir / config.operators, spec, config.tensor_parallel).origin.dtype
    own_weights = parse_scheme(told or "bf16")
    if wanted is not None and wanted != own_weights and (told or wanted.bits_per_weight != own_weights.bits_per_weight):
        raise ScenarioError(
            f"weights: must be those of the operator tables in {config.operators}, {own_weights.name} "
            f"(got {wanted.name}); leave weights out, or take a roofline"
        )
    weights = wanted or own_weights
    return weights, weights.name, config.tensor_parallel
