"""Read run folders as ``simserve run`` leaves them; refuse what is torn, foreign or of another version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve import manifest as run_manifest
from simserve import summary as run_summary
from simserve.errors import RunError

REMEDY = "give a folder that `simserve run` wrote"
REQUESTS = "requests.parquet"


@dataclass(frozen=True)
class Run:
    """A finished run: its folder as the user named it, ``summary.json`` and ``manifest.json`` as they are."""

    folder: Path
    summary: Mapping[str, Any]
    manifest: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The last part of the folder's path."""
        return self.folder.resolve().name

    @property
    def variants(self) -> list[str]:
        """Names of the variants, in the order of the scenario."""
        return list(self.summary["variants"])


def load_run(folder: Path) -> Run:
    """The run in ``folder``. Raises RunError in one sentence when it is not a whole run of the known version.

    The requests are read later, a variant at a time (``simserve.compare.requests``).
    """
    if not folder.is_dir():
        found = "it is a file" if folder.exists() else "there is no such folder"
        raise RunError(f"{folder}: must be a run's folder ({found}); {REMEDY}")
    manifest = _read_json(folder / "manifest.json")
    kind = manifest.get("kind")
    if kind != run_manifest.KIND:
        raise RunError(f"{folder}/manifest.json: kind: must be {run_manifest.KIND!r} (got {kind!r}); {REMEDY}")
    _check_version(folder / "manifest.json", manifest, run_manifest.SCHEMA_VERSION)
    summary = _read_json(folder / "summary.json")
    _check_version(folder / "summary.json", summary, run_summary.SCHEMA_VERSION)
    for name, document in (("summary.json", summary), ("manifest.json", manifest)):
        variants = document.get("variants")
        if not isinstance(variants, dict) or not variants or not all(isinstance(v, dict) for v in variants.values()):
            raise RunError(f"{folder}/{name}: variants: must be an object of at least one variant; {REMEDY}")
    if set(summary["variants"]) != set(manifest["variants"]):
        raise RunError(f"{folder}: summary.json and manifest.json must name the same variants; run it again")
    if not (folder / REQUESTS).is_file():
        raise RunError(f"{folder}/{REQUESTS}: must be there (the folder is not whole); run it again")
    return Run(folder, summary, manifest)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: must be there (the folder is not a whole run); {REMEDY}") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()}); {REMEDY}") from None
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{path}: must be JSON ({reason}); run it again, for the file is torn") from None
    if not isinstance(content, dict):
        raise RunError(f"{path}: must hold a JSON object (got {type(content).__name__}); {REMEDY}")
    return content


def _check_version(path: Path, document: Mapping[str, Any], known: int) -> None:
    version = document.get("schema_version")
    if version != known:
        raise RunError(f"{path}: schema_version: must be {known} (got {version!r}); run it again with this simserve")
