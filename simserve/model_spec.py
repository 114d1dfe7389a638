"""The numbers of a model's architecture: parameters, KV bytes per token, FLOPs.

Dense decoders of the families llama, mistral, qwen2 and qwen3, all with a gated MLP, RMS norms and grouped-query
attention. Shapes come from the built-in catalogue or from a Hugging Face ``config.json`` (nothing is downloaded).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from simserve.errors import ModelError
from simserve.model_catalogue import CONFIGS, HUB_NAMES

MAX_DIMENSION = 2**24  # of any one number; beyond it a file is damaged or a joke, and figures would leave floats
DTYPE_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class ModelSpec:
    """Dimensions of one dense decoder; every count is derived from them.

    ``qkv_bias`` / ``output_bias`` / ``mlp_bias`` say which projections carry a bias, ``qk_norm`` whether each layer
    normalises queries and keys per head (two vectors of ``head_dim``; Qwen3).
    """

    name: str
    family: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    max_position_embeddings: int = 32_768
    rope_theta: float = 10_000.0

    @property
    def query_size(self) -> int:
        """Width of the queries of one layer, all heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the keys (or of the values) of one layer, all KV heads together."""
        return self.num_kv_heads * self.head_dim

    @property
    def attention_matmul_parameters(self) -> int:
        """Weights of the query, key, value and output projections of all layers."""
        return self.num_layers * self.hidden_size * (2 * self.query_size + 2 * self.kv_size)

    @property
    def matmul_parameters(self) -> int:
        """Weights that every token is multiplied by: projections and MLP of all layers. The embedding is a look-up and
        the output head is counted apart, because only rows that emit a token meet it."""
        return self.attention_matmul_parameters + self.num_layers * 3 * self.hidden_size * self.intermediate_size

    @property
    def lm_head_parameters(self) -> int:
        """Weights of the output head (shared with the embedding when tied)."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters, the published count: embedding, head unless tied, projections, biases, norms."""
        per_layer = 2 * self.hidden_size
        per_layer += self.qkv_bias * (self.query_size + 2 * self.kv_size) + self.output_bias * self.hidden_size
        per_layer += self.mlp_bias * (2 * self.intermediate_size + self.hidden_size) + self.qk_norm * 2 * self.head_dim
        embeddings = self.lm_head_parameters * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.matmul_parameters + self.num_layers * per_layer + self.hidden_size

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all parameters kept in ``dtype``."""
        return self.num_parameters * dtype_bytes(dtype)

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values that one cached token takes over all layers."""
        return 2 * self.num_layers * self.kv_size * dtype_bytes(dtype)

    def with_kv_heads(self, num_kv_heads: int) -> ModelSpec:
        """The same model with so many KV heads, and named so where they are not its own: parameters, KV bytes and FLOPs
        follow. Raises ``ModelError`` unless they divide the attention heads."""
        if num_kv_heads == self.num_kv_heads:
            return self
        if num_kv_heads < 1 or self.num_attention_heads % num_kv_heads:
            rule = f"must divide the {self.num_attention_heads} attention heads of {self.name}"
            raise ModelError(f"kv_heads: {rule} (got {num_kv_heads})")
        return replace(self, name=f"{self.name}-kv{num_kv_heads}", num_kv_heads=num_kv_heads)

    def matmul_flops(self, num_tokens: int, num_emitting_rows: int) -> int:
        """FLOPs of all matrix products with weights (2 per weight and token; the head for emitting rows only)."""
        return 2 * (self.matmul_parameters * num_tokens + self.lm_head_parameters * num_emitting_rows)

    def attention_flops(self, num_pairs: int) -> int:
        """FLOPs of scores and weighted sums over ``num_pairs`` (query, key) pairs, each counted once per sequence."""
        return 4 * self.num_layers * self.query_size * num_pairs

    def to_hf_config(self) -> dict[str, Any]:
        """A ``config.json`` of this shape, as transformers reads it (class default for whatever is not a dimension)."""
        config: dict[str, Any] = {
            "model_type": self.family,
            "num_hidden_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "rope_theta": self.rope_theta,
        }
        if self.family in ("llama", "qwen3"):
            config["attention_bias"] = self.output_bias
        if self.family == "llama":
            config["mlp_bias"] = self.mlp_bias
        return config


def causal_pairs(num_new_tokens: int, num_context_tokens: int) -> int:
    """(query, key) pairs of a chunk: each new token attends to the whole context, to its elders and to itself."""
    return num_new_tokens * num_context_tokens + num_new_tokens * (num_new_tokens + 1) // 2


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number of ``dtype``; raises ``ModelError`` for a name that is not in ``DTYPE_BYTES``."""
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"dtype: must be one of {', '.join(DTYPE_BYTES)} (got {dtype!r})")
    return DTYPE_BYTES[dtype]


def load_model_spec(name_or_path: str | Path) -> ModelSpec:
    """The spec of a catalogue name, a hub name whose last part is one, a ``config.json``, or a folder that holds one.

    Raises ``ModelError`` in one sentence: unknown name, unreadable file, missing or impossible dimension, or a model
    that is not a dense decoder of a known family.
    """
    bare = str(name_or_path).lower()
    if bare in CATALOGUE:  # before folders: one that happens to be called like a model hides nothing
        return CATALOGUE[bare]
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file() or path.suffix == ".json":
        return spec_from_config(_read_json(path), path.parent.resolve().name, str(path))
    key = bare.rstrip("/").rsplit("/", 1)[-1]
    key = HUB_NAMES.get(key, key)
    if key not in CATALOGUE:
        close = get_close_matches(key, CATALOGUE, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(CATALOGUE)}"
        raise ModelError(f"model: {str(name_or_path)!r} is neither a known name nor a path to a config.json; {hint}")
    return CATALOGUE[key]


def spec_from_config(config: Mapping[str, Any], name: str, where: str) -> ModelSpec:
    """Read a Hugging Face configuration; ``where`` is what messages call it. Raises ``ModelError``."""
    outer, inner = config, config.get("text_config")
    config = inner if isinstance(inner, Mapping) else outer
    family = _family(config, where)
    hidden, heads = _dimension(config, "hidden_size", where), _dimension(config, "num_attention_heads", where)
    kv_heads = _dimension(config, "num_key_value_heads", where, default=heads)
    if heads % kv_heads:
        raise ModelError(f"{where}: num_key_value_heads: must divide num_attention_heads {heads} (got {kv_heads})")
    bias = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3")
    return ModelSpec(
        name=name,
        family=family,
        num_layers=_dimension(config, "num_hidden_layers", where),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(config, family, where),
        intermediate_size=_dimension(config, "intermediate_size", where),
        vocab_size=_dimension(config, "vocab_size", where),
        # The four families' own default is False, unlike that of the base class of configurations.
        tie_word_embeddings=bool(config.get("tie_word_embeddings", outer.get("tie_word_embeddings", False))),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)) and family == "llama",
        qk_norm=family == "qwen3",
        max_position_embeddings=_dimension(config, "max_position_embeddings", where, default=32_768),
        rope_theta=_rope_theta(config),
    )


def _family(config: Mapping[str, Any], where: str) -> str:
    family = config.get("model_type")
    for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"):
        if config.get(key):
            raise ModelError(f"{where}: {key}: mixture-of-experts models are not supported yet (got {config[key]!r})")
    if isinstance(family, str) and ("moe" in family or family == "mixtral"):
        raise ModelError(f"{where}: model_type: mixture-of-experts models are not supported yet (got {family!r})")
    if family not in FAMILIES:
        raise ModelError(f"{where}: model_type: must be one of {', '.join(FAMILIES)} (got {family!r})")
    return str(family)


def _head_dim(config: Mapping[str, Any], family: str, where: str) -> int:
    if config.get("head_dim") is not None:
        return _dimension(config, "head_dim", where)
    if family == "qwen3":
        return 128  # this family's default is a constant, whatever the hidden size
    hidden, heads = _dimension(config, "hidden_size", where), _dimension(config, "num_attention_heads", where)
    if hidden % heads:
        rule = f"must be divisible by num_attention_heads {heads} where there is no head_dim"
        raise ModelError(f"{where}: hidden_size: {rule} (got {hidden})")
    return hidden // heads


def _dimension(config: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise ModelError(f"{where}: {key}: is missing; give the whole config.json of a decoder")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{where}: {key}: must be a positive whole number (got {value!r:.60})")
    if value > MAX_DIMENSION:
        raise ModelError(f"{where}: {key}: must be ≤ {MAX_DIMENSION} (got {value!s:.40})")
    return value


def _rope_theta(config: Mapping[str, Any]) -> float:
    rope = config.get("rope_parameters")
    value = config.get("rope_theta", rope.get("rope_theta") if isinstance(rope, Mapping) else None)
    return float(value) if isinstance(value, int | float) else 10_000.0


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:  # also text that is not UTF-8
        raise ModelError(f"{path}: is not JSON ({error})") from error
    except RecursionError as error:
        raise ModelError(f"{path}: is nested too deeply to be a config.json") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: must hold a JSON object (got {type(config).__name__})")
    return config


CATALOGUE: dict[str, ModelSpec] = {name: spec_from_config(config, name, name) for name, config in CONFIGS.items()}
