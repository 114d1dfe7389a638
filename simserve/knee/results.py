"""Where a study's results go: a folder that resumes, a document, a page, a manifest."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from simserve.manifest import manifest_head
from simserve.scenario import Scenario
from simserve.summary import to_json
from simserve.tasks.executors import executor_for
from simserve.tasks.folder import StudyFolder, study_folder
from simserve.tasks.runner import Runner

MANIFEST = "manifest.json"
Render = Callable[[Mapping[str, Any], Mapping[str, Any], Path], None]


@dataclass(frozen=True)
class Place:
    """Where a study runs and what it leaves: the folder, processes here or a cluster, and how much is said."""

    out: Path
    kind: str
    workers: int | None = None
    cluster: str | None = None
    quiet: bool = False
    command: str = ""

    @property
    def word(self) -> str:
        """``knee`` or ``capacity``."""
        return self.kind.rpartition(" ")[2]


@dataclass(frozen=True)
class Bench:
    """An open place: run tasks with ``runner``, then ``finish``."""

    place: Place
    folder: StudyFolder
    runner: Runner
    started: datetime
    began: float

    def finish(self, document: dict[str, Any], scenario: Scenario, render: Render) -> Path:
        """Write the document, its page and the manifest, each whole or not at all; returns the page's path."""
        seconds = time.perf_counter() - self.began
        manifest = manifest_head(self.place.kind, scenario, self.place.command, self.started, seconds)
        word = self.place.word
        self.folder.write(f"{word}.json", lambda path: path.write_text(to_json(document), encoding="utf-8"))
        self.folder.write(f"{word}.html", lambda path: render(document, manifest, path))
        self.folder.write(MANIFEST, lambda path: path.write_text(to_json(manifest), encoding="utf-8"))
        return self.place.out / f"{word}.html"


@contextmanager
def open_bench(place: Place, *more_files: str) -> Iterator[Bench]:
    """Open the folder and the executor; results that the folder holds already are used again. Raises InputError."""
    began, started = time.perf_counter(), datetime.now(UTC)
    messages = Console(stderr=True, quiet=place.quiet)
    files = (f"{place.word}.json", f"{place.word}.html", MANIFEST, *more_files)
    with (
        study_folder(place.out, place.kind, files) as folder,
        executor_for(place.workers, place.cluster, messages.print) as executor,
        Runner(executor, folder.store, messages) as runner,
    ):
        yield Bench(place, folder, runner, started, began)


def print_json(document: Mapping[str, Any]) -> None:
    """The document on standard output."""
    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
