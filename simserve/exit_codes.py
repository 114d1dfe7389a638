"""How a command ends: 0 done, 1 a defect with its traceback (or, of a ``check``, a finding), 2 wrong input in one
sentence, 130 interrupted."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from simserve.errors import InputError

INTERRUPTED = 130


@contextmanager
def exit_codes(when_interrupted: str) -> Iterator[None]:
    """Wrong input and Ctrl-C end in one line and their exit code; any other error keeps its traceback."""
    try:
        yield
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {when_interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def typed_command() -> str:
    """What the user typed, for provenance."""
    return shlex.join(["simserve", *sys.argv[1:]])
