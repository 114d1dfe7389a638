"""Work in a process of its own: what a process is lucky or unlucky with (where its memory lies, mostly: up to 7 % here
between processes of one engine) is then as it would be in the next one."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from calibrate.errors import CalibrationError
from simserve.errors import InputError

T = TypeVar("T")
Tell = Callable[..., None]
_JOIN_S = 10.0


def in_fresh_process(work: Callable[..., T], *arguments: object, on_progress: Tell) -> T:
    """``work(tell, *arguments)`` in a new interpreter; what it passes to ``tell`` goes to ``on_progress`` here. All of
    it must be picklable. Raises the ``InputError`` that ``work`` raised, and ``CalibrationError`` if it ended
    otherwise without a result; its traceback is then on stderr. Nothing is left running, whatever happens here."""
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, work, arguments))
    process.start()
    there.close()
    try:
        while True:
            kind, told = _next(here, process)
            if kind == "result":
                result: T = told
                return result
            if kind == "error":
                raise told
            on_progress(*told)
    finally:
        here.close()
        process.join(_JOIN_S)
        if process.is_alive():
            process.terminate()
            process.join()


def _next(here: Connection, process: Any) -> tuple[str, Any]:  # noqa: ANN401 - a SpawnProcess, untyped in some versions
    try:
        kind, told = here.recv()
    except EOFError:
        process.join()
        rule = "must answer before it ends"
        raise CalibrationError(f"engine: its process {rule} (got exit code {process.exitcode}); see above") from None
    return kind, told


def _answer(there: Connection, work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """The new process: run, tell, answer."""
    try:
        result = work(lambda *told: there.send(("progress", told)), *arguments)
        there.send(("result", result))
    except InputError as error:
        there.send(("error", error))
    except BrokenPipeError:  # nobody waits any more
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
