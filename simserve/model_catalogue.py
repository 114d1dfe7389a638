"""The built-in models, each as the dimensions of its published Hugging Face ``config.json``.

Keys are lower-case catalogue names. ``25m`` and ``tiny`` are shapes of this project: the smallest whose step times
curve like a real model's, and one that is all overhead, for tests of scheduling. Pure data: ``model_spec`` reads it.
"""

from __future__ import annotations

from typing import Any


def _config(
    family: str, dimensions: tuple[int, int, int, int, int, int], max_positions: int, **more: float | bool
) -> dict[str, Any]:
    """``dimensions``: layers, hidden size, attention heads, KV heads, intermediate size, vocabulary."""
    layers, hidden, heads, kv_heads, intermediate, vocabulary = dimensions
    return {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": False,
        **more,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": _config("qwen2", (2, 64, 2, 1, 128, 1_024), 32_768, rope_theta=1e6, tie_word_embeddings=True),
    "25m": _config("qwen2", (8, 512, 8, 2, 1_408, 8_192), 32_768, rope_theta=1e6, tie_word_embeddings=True),
    "qwen2.5-0.5b": _config(
        "qwen2", (24, 896, 14, 2, 4_864, 151_936), 32_768, rope_theta=1e6, tie_word_embeddings=True
    ),
    "qwen2.5-7b": _config("qwen2", (28, 3_584, 28, 4, 18_944, 152_064), 131_072, rope_theta=1e6),
    "qwen3-8b": _config("qwen3", (36, 4_096, 32, 8, 12_288, 151_936), 40_960, rope_theta=1e6, head_dim=128),
    "qwen3-32b": _config("qwen3", (64, 5_120, 64, 8, 25_600, 151_936), 40_960, rope_theta=1e6, head_dim=128),
    "llama-2-7b": _config("llama", (32, 4_096, 32, 32, 11_008, 32_000), 4_096),
    "llama-2-13b": _config("llama", (40, 5_120, 40, 40, 13_824, 32_000), 4_096),
    "llama-2-70b": _config("llama", (80, 8_192, 64, 8, 28_672, 32_000), 4_096),
    "llama-3.1-8b": _config("llama", (32, 4_096, 32, 8, 14_336, 128_256), 131_072, rope_theta=5e5),
    "llama-3.1-70b": _config("llama", (80, 8_192, 64, 8, 28_672, 128_256), 131_072, rope_theta=5e5),
    "mistral-7b": _config("mistral", (32, 4_096, 32, 8, 14_336, 32_000), 32_768),
}

HUB_NAMES: dict[str, str] = {
    "qwen2.5-0.5b-instruct": "qwen2.5-0.5b",
    "qwen2.5-7b-instruct": "qwen2.5-7b",
    "llama-2-7b-hf": "llama-2-7b",
    "llama-2-7b-chat-hf": "llama-2-7b",
    "llama-2-13b-hf": "llama-2-13b",
    "llama-2-13b-chat-hf": "llama-2-13b",
    "llama-2-70b-hf": "llama-2-70b",
    "llama-2-70b-chat-hf": "llama-2-70b",
    "llama-3.1-8b-instruct": "llama-3.1-8b",
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama-3.1-8b-instruct": "llama-3.1-8b",
    "llama-3.1-70b-instruct": "llama-3.1-70b",
    "meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama-3.1-70b-instruct": "llama-3.1-70b",
    "mistral-7b-v0.1": "mistral-7b",
}
"""Last parts of hub names (lower case) that have the shape of a catalogue entry under another name."""
