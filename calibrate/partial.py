"""The partial file beside the profile: what an interrupted run measured, for the next run to continue."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from simserve.errors import OutputError
from simserve.step_time.profile_schema import Sample, content_digest

_SAMPLES = TypeAdapter(list[Sample])


class PartialFile:
    """Samples of an unfinished calibration. ``identity`` says what was measured on what; samples of anything else are
    never mixed in."""

    def __init__(self, profile_path: Path, identity: dict[str, Any]) -> None:
        self.path = profile_path.with_name(profile_path.name + ".partial")
        self._fingerprint = content_digest(identity)

    def load(self) -> list[Sample]:
        """What an earlier run of the same calibration left."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["fingerprint"] != self._fingerprint:
                return []
            return _SAMPLES.validate_json(json.dumps(content["samples"]))
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            return []

    def save(self, samples: list[Sample]) -> None:
        """Keep the samples so far."""
        rows = [sample.model_dump(mode="json", exclude_defaults=True) for sample in samples]
        write_atomically(self.path, json.dumps({"fingerprint": self._fingerprint, "samples": rows}))

    def remove(self) -> None:
        """The profile is written: the partial file has served."""
        self.path.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write through a temporary file in the same folder and rename, so that no reader ever sees half a file.
    Raises ``OutputError``."""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def require_writable(path: Path) -> None:
    """Raise ``OutputError`` now rather than after minutes of measuring."""
    if path.is_dir():
        raise OutputError(f"{path}: must be a file to write (got a folder)")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: its folder must exist (got {path.parent})")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error
