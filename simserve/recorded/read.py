"""Which reader a file of a recorded run needs, told by what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from simserve.errors import RunError
from simserve.recorded import engine_run, generic, guidellm, replay_folder, run_folder, vllm_bench, vllm_requests
from simserve.recorded.run import RecordedRun
from simserve.scenario.messages import printable

FORMATS = (
    "auto",
    "simserve-replay",
    "simserve-run",
    "engine-run",
    "vllm-requests",
    "vllm-bench",
    "guidellm",
    "requests",
)
_HEAD_BYTES = 1 << 16


def read_recorded(path: Path, form: str = "auto") -> RecordedRun:
    """The run in a file or folder. Raises InputError in one sentence when it is none that is known, or cannot be read.

    ``form``: one of ``FORMATS``; ``auto`` tells it from the content.
    """
    if not path.exists():
        raise RunError(printable(f"{path}: no such file or folder; give a recorded run's"))
    if form == "auto":
        form = detect(path)
    if form not in _READERS:
        raise RunError(printable(f"--format: must be one of {', '.join(FORMATS)} (got {form!r})"))
    try:
        return _READERS[form](path)
    except OSError as error:
        raise RunError(printable(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})")) from None


def detect(path: Path) -> str:
    """The format of a file or folder."""
    if path.is_dir():
        return _folder_format(path)
    head = _head(path)
    if '"kind": "engine run"' in head.partition("\n")[0]:
        return "engine-run"
    if "queued_ts" in head and "first_token_ts" in head:
        return "vllm-requests"
    if '"endpoint_type"' in head and '"num_prompts"' in head:
        return "vllm-bench"
    if '"guidellm_version"' in head or '"generative_benchmark"' in head:
        return "guidellm"
    return "requests"


def _folder_format(path: Path) -> str:
    manifest = path / "manifest.json"
    kind = ""
    if manifest.is_file():
        try:
            kind = str(json.loads(manifest.read_text(encoding="utf-8")).get("kind"))
        except (OSError, ValueError, AttributeError):
            raise RunError(printable(f"{manifest}: must be a manifest (it is torn); run it again")) from None
    if kind in ("simserve replay", "simserve run"):
        return kind.replace(" ", "-")
    if (path / vllm_requests.FILE).is_file():
        return "vllm-requests"
    raise RunError(
        printable(
            f"{path}: must be the folder of `simserve replay` or `simserve run`, or hold {vllm_requests.FILE}; "
            "name the file of the requests"
        )
    )


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise RunError(printable(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})")) from None


_READERS: dict[str, Callable[[Path], RecordedRun]] = {
    "simserve-replay": replay_folder.read,
    "simserve-run": run_folder.read,
    "engine-run": engine_run.read,
    "vllm-requests": vllm_requests.read,
    "vllm-bench": vllm_bench.read,
    "guidellm": guidellm.read,
    "requests": generic.read,
}
