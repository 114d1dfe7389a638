"""What ``llama-batched-bench`` (llama.cpp) prints: its table, or one JSON object a line (``--output-format jsonl``).

For ``B`` sequences it times the prefill of ``PP`` tokens each (``T_PP``), then ``TG`` decode steps of all of them
(``T_TG``). So a decode step takes ``T_TG / TG`` at the context halfway, ``PP + TG/2``: times are linear in context, and
the mean over the steps is the time at the mean context. ``T_PP`` is of all prompts together, whole, however many
physical batches they were cut into.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibrate.importers.reading import Reading
from calibrate.importers.step_csv import count, file_words, number
from simserve.errors import ProfileError
from simserve.step_time.operators.csv_files import read_text
from simserve.step_time.source import MeasuredPoint

_NAMES = {"pp": "PP", "tg": "TG", "b": "B", "n_kv": "N_KV", "t_pp s": "T_PP", "t_tg s": "T_TG"}
_KEYS = {"pp": "PP", "tg": "TG", "pl": "B", "n_kv": "N_KV", "t_pp": "T_PP", "t_tg": "T_TG"}
_OPTIONAL = ("is_pp_shared", "n_ubatch")


def read_llama_bench(path: Path) -> Reading:
    """Read the output, whatever the program logged around it. Raises ``ProfileError``."""
    rows = list(_rows(read_text(path), str(path)))
    if not rows:
        raise ProfileError(f"{path}: must hold the table of llama-batched-bench or its jsonl (got neither)")
    decodes, prefills = [], []
    for where, row in rows:
        prompt, answer, batch = (count(row, name, where, 1) for name in ("PP", "TG", "B"))
        if _is_shared(row, prompt, answer, batch, where):
            rule = "the prompt is shared (-pps), so its cache is read once for all"
            raise ProfileError(f"{where}: {rule}; run without -pps")
        decodes.append(MeasuredPoint("decode", batch, 1, prompt + answer // 2, _seconds(row, "T_TG", where) / answer))
        prefills.append(MeasuredPoint("prefill", batch, prompt, 0, _seconds(row, "T_PP", where)))
    notes = [
        "decode steps are means over the generated tokens, put at the context halfway (prompt + half of the answer)",
        "prefill times are of whole prompts, cut into physical batches as llama.cpp was told to"
        + (f" (n_ubatch {rows[0][1]['n_ubatch']})" if rows[0][1].get("n_ubatch") else ""),
    ]
    return Reading((*prefills, *decodes), notes=tuple(notes), source=f"llama-batched-bench, {file_words(path)}")


def _is_shared(row: dict[str, str], prompt: int, answer: int, batch: int, where: str) -> bool:
    if row.get("is_pp_shared") not in (None, "", "0", "False"):
        return True
    return batch > 1 and count(row, "N_KV", where) == prompt + batch * answer


def _seconds(row: dict[str, str], column: str, where: str) -> float:
    value = number(row, column, where)
    if not 0 < value < 1e7:
        raise ProfileError(f"{where}: {column}: must be positive (got {row[column]}); time more tokens")
    return value


def _rows(text: str, path: str) -> Iterator[tuple[str, dict[str, str]]]:
    head: list[str] = []
    for line_number, line in enumerate(text.splitlines(), 1):
        where, stripped = f"{path}: line {line_number}", line.strip()
        if stripped.startswith("{"):
            yield where, _json_row(stripped, where)
        elif stripped.startswith("|"):
            cells = [cell.strip() for cell in stripped.strip("|").split("|")]
            if "PP" in cells:
                head = [name.lower() for name in cells]
            elif head and not re.fullmatch(r"[-:\s|]+", stripped):
                yield where, _table_row(head, cells, where)


def _table_row(head: list[str], cells: list[str], where: str) -> dict[str, str]:
    if len(cells) != len(head):
        raise ProfileError(f"{where}: must have {len(head)} cells, as the head of the table (got {len(cells)})")
    found = {_NAMES[name]: cell for name, cell in zip(head, cells, strict=True) if name in _NAMES}
    return _whole(found, where)


def _json_row(line: str, where: str) -> dict[str, str]:
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{where}: is not a whole JSON object ({error})") from error
    found = {name: str(content[key]) for key, name in _KEYS.items() if key in content}
    return _whole(found, where) | {key: str(content[key]) for key in _OPTIONAL if key in content}


def _whole(row: dict[str, str], where: str) -> dict[str, str]:
    missing = [name for name in _KEYS.values() if name not in row]
    if missing:
        raise ProfileError(f"{where}: must have {', '.join(missing)} (got {', '.join(row) or 'none of the columns'})")
    return row
