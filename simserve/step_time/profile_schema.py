"""The profile file: what was measured, on what, and what was fitted to it (JSON, ``schema_version`` 1).

A profile is data that someone measured, never hand-written: ``digest`` is a SHA-256 over everything else in the file,
and a file whose content does not match it is refused. Units are in the names; ``_s`` are seconds, shares are fractions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from simserve.errors import ProfileError
from simserve.step_time.profile_fit import (
    BatchCurve,
    BatchPoint,
    Drift,
    GpuClocks,
    HeldOut,
    HeldOutError,
    KvBytes,
    MixedCorrection,
    NoCacheTable,
    Noise,
    Positive,
    Seconds,
    Share,
    Strict,
    Table,
    TableRow,
    Validity,
)
from simserve.step_time.profile_samples import Clock, RepeatedSteps, Sample, StepOverhead

__all__ = [
    "PROFILES_DIR",
    "SCHEMA_VERSION",
    "BatchCurve",
    "BatchPoint",
    "Drift",
    "GpuClocks",
    "HeldOut",
    "HeldOutError",
    "KvBytes",
    "MixedCorrection",
    "ModelDimensions",
    "NoCacheTable",
    "Noise",
    "Profile",
    "Provenance",
    "RepeatedSteps",
    "Sample",
    "StepOverhead",
    "Table",
    "TableRow",
    "Validity",
    "content_digest",
    "load_profile",
    "parse_profile",
    "require_measured_with",
    "require_model",
    "shipped_profiles",
]

SCHEMA_VERSION = 1
PROFILES_DIR = Path(__file__).parent / "profiles"


class ModelDimensions(Strict):
    """The numbers that decide a step's work; two models with equal dimensions share a profile."""

    num_layers: Positive
    hidden_size: Positive
    num_attention_heads: Positive
    num_kv_heads: Positive
    head_dim: Positive
    intermediate_size: Positive
    vocab_size: Positive
    tie_word_embeddings: bool

    @classmethod
    def of(cls, spec: object) -> ModelDimensions:
        """From anything that has these attributes, such as a ``ModelSpec``."""
        return cls(**{name: getattr(spec, name) for name in cls.model_fields})

    @property
    def config_hash(self) -> str:
        """Sixteen hex digits that identify the dimensions."""
        return content_digest(self.model_dump(mode="json"))[:16]


class Provenance(Strict):
    """Who measured, on what, with what, when and how; null is what an imported measurement does not tell.

    ``origin`` says what a step is: a bare ``forward`` of the model, a step of a whole ``engine`` (its host work
    included), what a ``server`` showed to its clients, or a measurement ``imported`` from elsewhere. ``source`` names
    the engine and version, the server, or the publication and licence of imported figures. With ``graphs`` the decode
    steps were replayed as CUDA graphs. ``weights`` says whose they are; ``weight_scheme`` how wide the linear layers
    really were (``int8``, ``int4``, …, as ``simserve memory --weights`` calls them), null where they were in ``dtype``.
    ``reference_s`` is what a fixed piece of work took beside it, by which a run that timed it too tells how fast the
    machine was.
    """

    origin: Literal["forward", "engine", "server", "imported"] = "forward"
    source: str | None = None
    model: str
    dimensions: ModelDimensions
    config_hash: str
    weights: Literal["random", "trained"] | None
    device: Literal["cpu", "cuda", "unknown"]
    device_name: str
    tensor_parallel: Positive = 1
    driver: str | None
    num_cpus: Positive | None
    threads: Positive | None
    dtype: str
    attention: str | None
    kv_cache: str | None
    clock: Clock
    clock_reason: str
    torch_version: str | None
    transformers_version: str | None
    python_version: str | None
    platform: str | None
    date: str
    command: str
    duration_s: Share
    notes: tuple[str, ...] = ()
    graphs: bool = False
    gpu_clocks: GpuClocks | None = None
    weight_scheme: str | None = None
    reference_s: Seconds | None = None

    @property
    def precision(self) -> str:
        """What products computed in, and how the weights were kept where that is something else."""
        kept = self.weight_scheme not in (None, self.dtype)
        return f"{self.dtype}, weights in {self.weight_scheme}" if kept else self.dtype


class Profile(Strict):
    """A measured step-time profile. ``one_mask``: steps with prefills attend as one row, see ``ComposedSteps``;
    ``repeated``: what decode steps take that follow others of their own decision, where that was measured."""

    schema_version: Literal[1]
    name: str
    provenance: Provenance
    prefill: Table
    decode: Table
    held_out: HeldOut
    validity: Validity
    kv_bytes_per_token: KvBytes | None
    batch_curve: BatchCurve
    mixed: MixedCorrection | None = None
    one_mask: bool = False
    repeated: RepeatedSteps | None = None
    no_cache: NoCacheTable | None = None
    noise: Noise | None = None
    drift: Drift | None = None
    overhead: StepOverhead | None = None
    samples: tuple[Sample, ...] = Field(min_length=1)
    digest: str


def content_digest(content: dict[str, Any]) -> str:
    """SHA-256 of a JSON object, whatever its key order or layout; a top-level ``digest`` is left out."""
    body = {key: value for key, value in content.items() if key != "digest"}
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the package."""
    return sorted(path.stem for path in PROFILES_DIR.glob("*.json"))


def load_profile(name_or_path: str | Path, model: object | None = None) -> Profile:
    """A shipped profile by name, or a file by path; with ``model`` (anything with the attributes of ``ModelSpec``) also
    checked to be of that model's dimensions.

    Raises ``ProfileError`` in one sentence: unknown name, unreadable or truncated file, another schema version, a field
    that breaks a rule, content that was changed after it was measured, or another model.
    """
    path = _find(name_or_path)
    profile = _parsed(path, str(name_or_path), _stamp(path))
    if model is not None:
        require_model(profile, model, str(name_or_path))
    return profile


@lru_cache(maxsize=16)
def _parsed(path: Path, where: str, stamp: tuple[int, int] | None) -> Profile:
    """Studies load the same profile thousands of times; ``stamp`` changes when the file does."""
    return parse_profile(_read(path), where)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def parse_profile(content: dict[str, Any], where: str) -> Profile:
    """Check the content of a profile file; ``where`` is what messages call it. Raises ``ProfileError``."""
    version = content.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        rule = f"must be {SCHEMA_VERSION} (got {version!r}); calibrate again with this version"
        raise ProfileError(f"{where}: schema_version: {rule}")
    try:
        # Through JSON, because strict types make a tuple only of a JSON array.
        profile = Profile.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        more = f" and {error.error_count() - 1} more" if error.error_count() > 1 else ""
        rule = first["msg"].removeprefix("Value error, ")
        raise ProfileError(f"{where}: {place}: {rule}{more}; profiles are measured, not written") from error
    if profile.digest != content_digest(content):
        rule = "does not match the content, which was changed after it was measured"
        raise ProfileError(f"{where}: digest: {rule} (got {profile.digest[:12]}…); calibrate again")
    return profile


def require_model(profile: Profile, model: object, where: str) -> None:
    """Raise ``ProfileError`` unless ``profile`` was measured on a model of the dimensions of ``model``."""
    asked, measured = ModelDimensions.of(model), profile.provenance.dimensions
    for field in ModelDimensions.model_fields:
        want, got = getattr(asked, field), getattr(measured, field)
        if want != got:
            name = str(getattr(model, "name", "another model"))
            remedy = f"run `simserve calibrate --model {name}`"
            if field == "num_kv_heads":  # the same model with other heads
                base = name.removesuffix(f"-kv{want}")
                remedy = f"run `simserve calibrate --model {base} --kv-heads {want}`, or take a roofline"
            raise ProfileError(
                f"{where}: model: must be measured on {name}, {field} {want} "
                f"(got {profile.provenance.model}, {field} {got}); {remedy}"
            )


def require_measured_with(profile: Profile, wanted: Mapping[str, str | int | None], where: str) -> None:
    """Raise ``ProfileError`` unless each field of the provenance that ``wanted`` names has its value there; ``None``
    wants nothing. A profile that does not tell, as an imported one may not, is refused too."""
    for field, want in wanted.items():
        got = getattr(profile.provenance, field)
        if want is not None and want != got:
            name = field.replace("_", " ")
            found = "its file does not tell" if got is None else f"got {got}"
            raise ProfileError(f"{where}: {field}: must be measured with {name} {want} ({found}); calibrate with it")


def _find(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if path.suffix == ".json" or path.exists():
        return path
    shipped = PROFILES_DIR / f"{name_or_path}.json"
    if shipped.is_file():
        return shipped
    names = shipped_profiles()
    close = get_close_matches(str(name_or_path), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"shipped are {', '.join(names) or 'none'}"
    raise ProfileError(f"profile: {str(name_or_path)!r} is neither a shipped profile nor a file; {hint}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: is not a whole JSON file ({error})") from error
    if not isinstance(content, dict):
        raise ProfileError(f"{path}: must hold a JSON object (got {type(content).__name__})")
    return content
