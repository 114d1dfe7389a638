"""``python -m calibrate.train``: a target and a draft, saved as folders that transformers, ``simserve quantize`` and
``simserve agreement`` load."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calibrate.errors import CalibrationError
from calibrate.partial import write_atomically
from calibrate.train.loop import Schedule, Shape, new_model, train
from calibrate.train.text import Text, read_text
from calibrate.train.vocabulary import learn_vocabulary

VOCABULARY = 1_024
SHAPES = {
    "target": Shape(hidden_size=256, intermediate_size=512, num_layers=3, num_heads=4, num_kv_heads=2),
    "draft": Shape(hidden_size=64, intermediate_size=128, num_layers=1, num_heads=2, num_kv_heads=1),
}
RATES = {"target": 2e-3, "draft": 4e-3}


@dataclass(frozen=True)
class TrainOptions:
    """Options of one run; each is a flag of the same name. ``steps`` are the target's, each of 8 × 128 tokens."""

    out: Path
    text: Path | None = None
    steps: int = 1_500
    seed: int = 0


def train_both(
    options: TrainOptions, console: Console | None = None, shapes: dict[str, Shape] | None = None
) -> dict[str, Path]:
    """Learn a vocabulary and train both models in one thread; returns their folders, by role. ``held-out.txt`` beside
    them is what neither has seen. The same text, seed and torch give the same weights. Raises ``CalibrationError``."""
    console = console or Console()
    if options.steps < 1:
        raise CalibrationError(f"steps: must be ≥ 1 (got {options.steps})")
    text = read_text(options.text)
    _make_folder(options.out)
    torch.set_num_threads(1)
    quiet: Any = transformers.utils.logging  # untyped
    quiet.disable_progress_bar()
    console.print(f"learning {VOCABULARY:,} tokens of {text.name} ({len(text.training):,} characters)")
    tokenizer = learn_vocabulary(text.training, VOCABULARY)
    ids = torch.tensor(tokenizer(text.training, verbose=False)["input_ids"])
    write_atomically(options.out / "held-out.txt", text.held_out)
    folders = {}
    for role, shape in (shapes or SHAPES).items():
        schedule = Schedule(options.steps, RATES[role], seed=options.seed)
        folders[role] = options.out / role
        model, losses = _train(role, shape, ids, schedule, console)
        model.save_pretrained(folders[role])
        tokenizer.save_pretrained(folders[role])
        record = _record(text, len(ids), (shape, schedule), losses)
        write_atomically(folders[role] / "training.json", json.dumps(record, indent=1) + "\n")
        console.print(f"wrote {folders[role]}: loss {_last(losses):.2f} per token, of {losses[0]:.2f} at the start")
    return folders


def _train(role: str, shape: Shape, ids: torch.Tensor, schedule: Schedule, console: Console) -> tuple[Any, list[float]]:
    model = new_model(shape, VOCABULARY, schedule.seed)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=schedule.num_steps)

        def on_step(loss: float) -> None:
            words = f"training the {role} ({num_parameters:,} parameters), loss {loss:.2f}"
            progress.update(task, advance=1, description=words)

        return model, train(model, ids, schedule, on_step)


def _record(text: Text, num_tokens: int, how: tuple[Shape, Schedule], losses: list[float]) -> dict[str, Any]:
    """What was trained on what: enough to do it again."""
    shape, schedule = how
    return {
        "text": {"name": text.name, "sha256": text.sha256, "num_tokens": num_tokens},
        "shape": asdict(shape),
        "schedule": asdict(schedule),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "losses": [round(loss, 4) for loss in losses],
    }


def _last(losses: list[float]) -> float:
    tail = losses[-50:]
    return sum(tail) / len(tail)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CalibrationError(f"{folder}: must be a folder to write to ({error.strerror})") from error
