"""What rounding does to weights and answers, and what a draft is worth: two JSON files that ``simserve quantize`` and
``simserve agreement`` write, and pages read (``schema_version`` 1).

Every ``Estimate`` carries an interval of 95 %. Files hold no date: the same model, text and seed give the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from simserve.errors import ProfileError
from simserve.step_time.measured_file import load_measured

QUANTIZATION, AGREEMENT = ".quantization.json", ".agreement.json"
"""How the files end, where nobody says otherwise."""

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Estimate(_Strict):
    """A figure and the interval of 95 % around it."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether ``value`` cannot be told from the estimate."""
        return self.low <= value <= self.high


class TextUsed(_Strict):
    """The text that models were judged on: ``sha256`` of the file, ``num_tokens`` by the model's own tokenizer."""

    name: str
    sha256: str
    num_tokens: Positive


class Software(_Strict):
    """Versions of what computed the figures, and the command that was typed."""

    simserve: str
    torch: str
    transformers: str
    command: str


class Quality(_Strict):
    """A model on ``num_windows`` windows of a text, and beside the full-precision model on the same ones.

    ``perplexity``: exp of the mean loss per token. ``perplexity_ratio``: over full precision's, paired by window.
    ``accuracy``: how often the likeliest next token is the text's; ``accuracy_change``: minus full precision's, paired.
    ``agreement``: over ``num_tokens`` greedy tokens of ``num_answers`` answers of the full-precision model, how often
    this model, given the same tokens before, would have chosen the same; ``equal_answers``: how many answers are equal
    as a whole, which is what a client of greedy decoding would see.
    """

    perplexity: Estimate
    perplexity_ratio: Estimate
    accuracy: Estimate
    accuracy_change: Estimate
    agreement: Estimate
    num_equal_tokens: Count
    num_tokens: Positive
    equal_answers: Estimate
    num_equal_answers: Count
    num_answers: Positive
    num_windows: Positive

    @property
    def differs(self) -> bool:
        """Whether perplexity was shown to differ from full precision's; one question in sixteen shows nothing."""
        return not self.perplexity_ratio.holds(1.0)


class SchemeRow(_Strict):
    """One scheme over all projection matrices. ``bits_per_weight`` counts levels and scales as they are kept. An error
    is ‖W − Ŵ‖ / ‖W‖ of a matrix: ``mean_error`` over the matrices, ``worst_error`` in ``worst_matrix``."""

    scheme: str
    method: str
    bits_per_weight: Annotated[float, Field(gt=0)]
    mean_error: Annotated[float, Field(ge=0)]
    worst_error: Annotated[float, Field(ge=0)]
    worst_matrix: str
    quality: Quality | None = None


class Quantization(_Strict):
    """All schemes on one model. ``note`` says why there is no quality where there is none."""

    schema_version: Literal[1]
    kind: Literal["simserve quantization"]
    name: str
    model: str
    weights: Literal["random", "trained"]
    dtype: str
    seed: int
    num_matrices: Positive
    num_weights: Positive
    text: TextUsed | None
    full_precision: Quality | None
    rows: tuple[SchemeRow, ...] = Field(min_length=1)
    note: str | None
    software: Software
    digest: str


class DraftAgreement(_Strict):
    """How far a draft agrees with its target in greedy decoding: ``num_passes`` passes of ``draft_tokens`` each.

    ``acceptance[i]`` is the share of passes whose first i drafts were accepted in which the next was too: the rate of a
    simulation's draws, position by position; ``tried`` and ``accepted`` are its counts, ``intervals`` hold as if passes
    were independent. The list ends where no pass came further. ``tokens_per_pass`` is the mean of accepted drafts and
    the target's own token.
    """

    schema_version: Literal[1]
    kind: Literal["simserve draft agreement"]
    name: str
    target: str
    draft: str
    draft_tokens: Positive
    acceptance: tuple[Share, ...] = Field(min_length=1)
    intervals: tuple[Estimate, ...] = Field(min_length=1)
    tried: tuple[Positive, ...] = Field(min_length=1)
    accepted: tuple[Count, ...] = Field(min_length=1)
    agreement: Estimate
    tokens_per_pass: Estimate
    num_passes: Positive
    num_answers: Positive
    num_answer_tokens: Positive
    draft_parameters: Positive
    target_parameters: Positive
    text: TextUsed
    seed: int
    software: Software
    digest: str


Document = TypeVar("Document", Quantization, DraftAgreement)


def load_quantization(path: Path) -> Quantization:
    """Read and check what ``simserve quantize`` wrote. Raises ``ProfileError`` in one sentence."""
    return _load(path, Quantization, "simserve quantize")


def load_agreement(path: Path) -> DraftAgreement:
    """Read and check what ``simserve agreement`` wrote. Raises ``ProfileError`` in one sentence."""
    return _load(path, DraftAgreement, "simserve agreement")


def _load(path: Path, schema: type[Document], command: str) -> Document:
    return load_measured(path, schema, command, lambda content: _check_kind(content, schema, path, command))


def _check_kind(content: object, schema: type[Document], path: Path, command: str) -> None:
    """Another program's file, or another version's, is called that, and not one in which something is missing."""
    if not isinstance(content, dict):
        raise ProfileError(f"{path}: must hold a JSON object (got {type(content).__name__}); run `{command}`")
    for key in ("kind", "schema_version"):
        (wanted,), got = get_args(schema.model_fields[key].annotation), content.get(key)
        if got != wanted:
            found = repr(got)[:60] if key in content else "nothing"
            raise ProfileError(f"{path}: {key}: must be {wanted!r} (got {found}); run `{command}` with this version")
