"""Which formats can be imported, and from files to a profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from calibrate.importers.aiconfigurator import DatabaseQuery, read_aiconfigurator
from calibrate.importers.assemble import default_name, make_profile
from calibrate.importers.llama_bench import read_llama_bench
from calibrate.importers.llmservingsim import read_llmservingsim
from calibrate.importers.reading import ImportOptions, Reading
from calibrate.importers.step_csv import read_step_csv
from calibrate.importers.vidur import read_vidur
from simserve.errors import ProfileError
from simserve.step_time.profile_schema import Profile

Format = Literal["step-csv", "llama-batched-bench", "llmservingsim", "vidur", "aiconfigurator"]
FORMATS: tuple[str, ...] = get_args(Format)


def import_profile(
    form: Format, files: Sequence[Path], options: ImportOptions, query: DatabaseQuery | None = None
) -> tuple[Profile, str]:
    """The profile of ``files``, or of a ``query`` to an installed database, and the text of its file; an empty
    ``options.name`` is made up from model, device and dtype. Raises ``ProfileError`` or ``ModelError`` in one
    sentence."""
    reading = _read(form, files, options, query or DatabaseQuery())
    if not options.name:
        options = replace(options, name=default_name(options, reading))
    return make_profile(reading, options)


def _read(form: Format, files: Sequence[Path], options: ImportOptions, query: DatabaseQuery) -> Reading:
    if form == "aiconfigurator":
        if files:
            raise ProfileError(f"aiconfigurator: must be given no file, only options (got {files[0]})")
        return read_aiconfigurator(query, options)
    if query != DatabaseQuery():
        raise ProfileError(f"{form}: must be given files alone; --system, --backend and --python are aiconfigurator's")
    if form == "vidur":
        if len(files) != 2:
            raise ProfileError(f"vidur: must be given two files, mlp.csv and attention.csv (got {len(files)})")
        return read_vidur(files[0], files[1], options.model)
    readers: dict[str, Callable[[Path], Reading]] = {
        "step-csv": read_step_csv,
        "llama-batched-bench": read_llama_bench,
        "llmservingsim": lambda path: read_llmservingsim(path, options.model),
    }
    if len(files) != 1:
        raise ProfileError(f"{form}: must be given one file or folder (got {len(files)})")
    return readers[form](files[0])
