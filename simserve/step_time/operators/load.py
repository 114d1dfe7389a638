"""A folder to operator tables: which profiler wrote it is told from its files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from simserve.errors import ProfileError
from simserve.model_spec import ModelSpec
from simserve.step_time.operators.csv_files import find_file
from simserve.step_time.operators.llmservingsim import read_llmservingsim
from simserve.step_time.operators.tables import OperatorTables
from simserve.step_time.operators.vidur import read_vidur


def load_operators(folder: Path, spec: ModelSpec, tensor_parallel: int = 1) -> OperatorTables:
    """The operator tables in ``folder``, of ``spec`` at a tensor-parallel degree.

    LLMServingSim's are in ``folder/tp<N>`` or, of one degree, in ``folder`` itself; Vidur's ``mlp.csv`` and
    ``attention*.csv`` hold all degrees. Raises ``ProfileError`` in one sentence: no such tables, one of them missing or
    malformed, another degree, or another model's.
    """
    return _load(folder, spec, tensor_parallel, _stamps(folder, tensor_parallel))


@lru_cache(maxsize=4)
def _load(
    folder: Path, spec: ModelSpec, tensor_parallel: int, _stamp: tuple[tuple[str, int, int], ...]
) -> OperatorTables:
    """Studies load the same tables thousands of times; the stamp changes when a file does."""
    if not folder.is_dir():
        raise ProfileError(
            f"{folder}: must be a folder of operator tables (got {'a file' if folder.exists() else 'nothing'})"
        )
    place = _llmservingsim(folder, tensor_parallel)
    if place is not None:
        return read_llmservingsim(place, spec)
    if find_file(folder, "mlp.csv"):
        return read_vidur(folder, spec, tensor_parallel)
    raise ProfileError(
        f"{folder}: must hold operator tables: dense.csv, attention.csv and per_sequence.csv (LLMServingSim), in a "
        "folder tp<N> or not, or mlp.csv and attention.csv (Vidur) (got neither)"
    )


def _llmservingsim(folder: Path, tensor_parallel: int) -> Path | None:
    """The folder of a degree's tables; None if this is no such profile. Raises ``ProfileError`` for other degrees."""
    wanted = f"tp{tensor_parallel}"
    if (folder / wanted).is_dir():
        return folder / wanted
    own = folder.resolve().name
    found = [own] if find_file(folder, "dense.csv") else sorted(path.name for path in folder.glob("tp[0-9]*"))
    if not found:
        return None
    if found[0] == own and (own == wanted or not own.removeprefix("tp").isdigit()):
        return folder
    raise ProfileError(
        f"{folder}: must hold tables of {wanted} as step_time.tensor_parallel says (got {', '.join(found)})"
    )


def _stamps(folder: Path, tensor_parallel: int) -> tuple[tuple[str, int, int], ...]:
    places = (folder, folder.parent, folder / f"tp{tensor_parallel}")
    files = sorted(path for place in places for path in (*place.glob("*.csv*"), *place.glob("meta.yaml")))
    stats = [(str(path), path.stat()) for path in files]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
