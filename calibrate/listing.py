"""Profiles side by side: those that come with the package, and those of a folder."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from simserve.errors import ProfileError
from simserve.step_time.chapters_schema import SUFFIX as CHAPTERS
from simserve.step_time.profile_schema import PROFILES_DIR, Profile, load_profile
from simserve.step_time.quality_schema import AGREEMENT, QUANTIZATION

_NO_PROFILES = (CHAPTERS, QUANTIZATION, AGREEMENT)  # what other commands leave in such folders


def list_profiles(folder: Path | None, console: Console) -> None:
    """Print every profile's name, model, device, dtype, origin and held-out error; a file that is no profile says so in
    its line. Raises ``ProfileError`` if ``folder`` is none."""
    if folder is not None and not folder.is_dir():
        raise ProfileError(f"{folder}: must be a folder with profiles (got no folder)")
    out = RichTable(caption="error: mean held-out error of prefill and decode steps", caption_justify="left")
    for name in ("name", "model", "device", "dtype", "origin", "error"):
        out.add_column(
            name,
            justify="right" if name == "error" else "left",
            overflow="fold",
            no_wrap=name not in ("model", "device"),
        )
    paths = sorted(PROFILES_DIR.glob("*.json")) + (sorted(folder.glob("*.json")) if folder else [])
    for path in (path for path in paths if not path.name.endswith(_NO_PROFILES)):
        name = path.stem if path.parent == PROFILES_DIR else path.name
        try:
            out.add_row(name, *_cells(load_profile(path)))
        except ProfileError:
            out.add_row(name, "no profile that this version reads", "", "", "", "")
    console.print(out)


def _cells(profile: Profile) -> list[str]:
    made = profile.provenance
    device = made.device_name if made.tensor_parallel == 1 else f"{made.tensor_parallel} × {made.device_name}"
    return [made.model, device, made.precision, made.origin, error_words(profile)]


def error_words(profile: Profile) -> str:
    """The mean held-out errors of a profile, in words."""
    held = profile.held_out
    means = [f"{phase.mean:.1%}" if phase.mean is not None else "?" for phase in (held.prefill, held.decode)]
    return " / ".join(means)
