"""The folder that a replay leaves; the caller stages it, so that it is there whole or not at all."""

from __future__ import annotations

import platform
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import simserve
from simserve.errors import OutputError
from simserve.manifest import source_revision
from simserve.replay.dialect import Dialect
from simserve.replay.server import Server
from simserve.replay.source import Source
from simserve.replay.summary import KIND, SCHEMA_VERSION, Measured
from simserve.summary import to_json

FILES = ("replay.json", "requests.parquet", "requests.csv", "events.parquet", "manifest.json")
PACKAGES = ("numpy", "pandas", "pyarrow")


def build_manifest(
    source: Source, server: Server, dialect: Dialect, command: str, started: datetime, wall_time_s: float
) -> dict[str, Any]:
    """What made the result. It never holds the key, nor what a URL had of a password."""
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "simserve_version": simserve.__version__,
        "revision": source_revision(Path(simserve.__file__).parents[1]),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        "platform": f"{platform.system()} {platform.machine()}",
        "command": server.scrub(command),
        "started": started.isoformat(timespec="seconds"),
        "wall_time_s": round(wall_time_s, 3),
        "url": server.address.url,
        "model": dialect.model_id,
        "asked_by": dialect.note,
        "source": source.described,
        "notes": list(source.notes),
    }


def write_files(
    document: dict[str, Any], manifest: dict[str, Any], measured: Measured, folder: Path, as_csv: bool
) -> None:
    """Write every file into an existing folder. Raises OutputError when the disk refuses."""
    try:
        (folder / "replay.json").write_text(to_json(document), encoding="utf-8")
        measured.requests.to_parquet(folder / "requests.parquet", index=False)
        if as_csv:
            measured.requests.to_csv(folder / "requests.csv", index=False)
        measured.events.to_parquet(folder / "events.parquet", index=False)
        (folder / "manifest.json").write_text(to_json(manifest), encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"results: cannot be written ({reason}); choose another --out") from None
