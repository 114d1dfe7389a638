"""A model to judge and the text to judge it on, cut into windows and prompts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from calibrate.errors import CalibrationError
from calibrate.memory import free_bytes
from calibrate.model import ModelSource, build_model
from calibrate.quantize.matrices import require_finite
from simserve.step_time.quality_schema import TextUsed

Model = Any
_COPIES = 2.5  # the weights, those rounded, and a matrix on its way


@dataclass(frozen=True)
class Tokens:
    """A text by a model's own tokenizer, one dimension."""

    ids: torch.Tensor
    used: TextUsed

    def windows(self, number: int, length: int) -> torch.Tensor:
        """``number`` windows of ``length`` tokens, evenly spread and not overlapping. Raises ``CalibrationError`` where
        the text is too short for that."""
        if number * length > len(self.ids):
            raise CalibrationError(
                f"text: must have {number} × {length} = {number * length:,} tokens (got {len(self.ids):,} in "
                f"{self.used.name}); ask for fewer or shorter windows, or give a longer text"
            )
        starts = [(len(self.ids) - length) * window // max(1, number - 1) for window in range(number)]
        return torch.stack([self.ids[start : start + length] for start in starts])


def build(source: ModelSource, dtype: str, seed: int) -> Model:
    """The model on the CPU. Raises ``CalibrationError`` where two copies of it do not fit in memory, and where its
    weights are no numbers."""
    free, needed = free_bytes("cpu"), int(_COPIES * source.spec.weight_bytes(dtype))
    if free is not None and needed > free:
        raise CalibrationError(
            f"memory: must hold {source.spec.name} twice, {needed / 2**30:.1f} GiB (got {free / 2**30:.1f} GiB free); "
            "use --dtype bf16 or a smaller model"
        )
    _hush()
    model = build_model(source, "cpu", dtype, "sdpa", seed)
    require_finite(model)
    return model


def _hush() -> None:
    """Weights are loaded without a bar of transformers' own."""
    import transformers

    logging: Any = transformers.utils.logging  # untyped
    logging.disable_progress_bar()


def tokenize(source: ModelSource, text: Path) -> Tokens:
    """Read ``text`` with the tokenizer in the model's folder. Raises ``CalibrationError``."""
    from calibrate.train.text import read_whole

    content = read_whole(text)
    try:
        import transformers

        auto: Any = transformers
        tokenizer = auto.AutoTokenizer.from_pretrained(source.origin)
    except (OSError, ValueError, KeyError, TypeError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise CalibrationError(
            f"model: {source.origin} must have a tokenizer that transformers can load ({first})"
        ) from error
    ids = tokenizer(content, add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        raise CalibrationError(f"{text}: must hold a text (got {len(content)} characters and no token)")
    if max(ids) >= source.spec.vocab_size:
        raise CalibrationError(
            f"model: the tokenizer's tokens must be below the vocabulary of {source.spec.vocab_size} (got {max(ids)})"
        )
    used = TextUsed(name=text.name, sha256=hashlib.sha256(content.encode()).hexdigest(), num_tokens=len(ids))
    return Tokens(torch.tensor(ids), used)
