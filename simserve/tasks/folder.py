"""The folder of a study: results grow in it while it runs, and everything made of them appears whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import OutputError
from simserve.scenario.messages import printable
from simserve.tasks.store import PointStore

POINTS = "points.jsonl"


@dataclass(frozen=True)
class StudyFolder:
    """An open folder: ``store`` keeps results as they come."""

    path: Path
    store: PointStore

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        """Have ``write`` make a file or folder under a hidden name, then give it ``name``; what stood there goes.

        Raises OutputError when the disk refuses.
        """
        target = self.path / name
        hidden = self.path / f".{name}.{secrets.token_hex(4)}.partial"
        try:
            write(hidden)
            if target.is_dir():
                shutil.rmtree(target)
            hidden.replace(target)
        except OutputError as error:  # of a writer that names what it was given
            _remove(hidden)
            raise OutputError(str(error).replace(str(hidden), str(target))) from None
        except OSError as error:
            _remove(hidden)
            raise OutputError(f"{target}: cannot be written ({_reason(error)}); choose another --out") from None
        except BaseException:
            _remove(hidden)
            raise


@contextmanager
def study_folder(folder: Path, kind: str, files: Collection[str], scenario: str | None = None) -> Iterator[StudyFolder]:
    """Open or create ``folder`` for a study of a ``kind`` ("simserve sweep"), whose results may be in it already.

    ``files`` are the names that such a study writes beside ``points.jsonl``. A folder is taken when it is empty, holds
    nothing else, and what it holds is of that kind and, where ``scenario`` is given, of the scenario of that name. A
    folder that was made for nothing (no result came) is removed. Raises OutputError before anything is changed.
    """
    path = Path(os.path.realpath(folder))
    _check_usable(path, folder, kind, {POINTS, *files})
    _check_scenario(path, folder, kind, scenario)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot write here ({_reason(error)}); choose another --out") from None
    try:
        with PointStore(path / POINTS) as store:
            _remove_partial(path)
            yield StudyFolder(path, store)
    finally:
        _remove_if_empty(path, missing)


def _check_usable(path: Path, shown: Path, kind: str, names: set[str]) -> None:
    word = kind.rpartition(" ")[2]
    try:
        if not path.exists():
            return
        if not path.is_dir():
            raise OutputError(f"{shown}: must be a folder (it is a file); choose another --out")
        found = {entry.name for entry in path.iterdir() if not _is_partial(entry.name)}
    except OSError as error:
        raise OutputError(f"{shown}: cannot read it ({_reason(error)}); choose another --out") from None
    foreign = sorted(found - names)
    if "manifest.json" in found and not foreign and _manifest_word(path, "kind") != kind:
        foreign = ["the manifest of something else"]
    if found and not foreign and POINTS not in found:
        foreign = [f"{min(found)} and no {POINTS}"]
    if foreign:
        rule = f"must be empty or an earlier {word}'s folder (it has {foreign[0]}); choose another --out"
        raise OutputError(f"{shown}: {rule}")


def _check_scenario(path: Path, shown: Path, kind: str, scenario: str | None) -> None:
    """The points of two scenarios in one folder would be taken for one's, and the other's curves be lost."""
    found = _manifest_word(path, "scenario")
    if scenario is not None and found is not None and found != scenario:
        word = kind.rpartition(" ")[2]
        rule = f"must be empty or hold a {word} of scenario {scenario} (it has one of {found}); choose another --out"
        raise OutputError(printable(f"{shown}: {rule}"))


def _manifest_word(path: Path, key: str) -> str | None:
    with suppress(OSError, ValueError, AttributeError):
        return str(json.loads((path / "manifest.json").read_text(encoding="utf-8")).get(key))
    return None


def _is_partial(name: str) -> bool:
    return name.startswith(".") and name.endswith(".partial")


def _remove_partial(path: Path) -> None:
    """What a killed study was writing."""
    for entry in path.iterdir():
        if _is_partial(entry.name):
            _remove(entry)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_if_empty(path: Path, missing: list[Path]) -> None:
    """Take back the folders that this study made, if it left nothing in them but an empty store."""
    with suppress(OSError):
        is_bare = missing and [entry.name for entry in path.iterdir()] == [POINTS]
        if is_bare and len((path / POINTS).read_bytes().splitlines()) <= 1:
            (path / POINTS).unlink()
        for folder in missing:
            folder.rmdir()


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
