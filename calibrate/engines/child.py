"""A process that answers JSON lines: one object in, one object out."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from calibrate.errors import CalibrationError


class Child:
    """``python script`` in another interpreter. Whatever it prints on stderr is kept for the message if it dies."""

    def __init__(self, python: Path, script: Path, environment: dict[str, str]) -> None:
        self._python = python
        self._stderr = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - until stop
        try:
            self._process = subprocess.Popen(
                [str(python), str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                encoding="utf-8",
                env={**os.environ, **environment},
            )
        except OSError as error:
            self._stderr.close()
            raise CalibrationError(f"engine_python: {python}: cannot be run ({error.strerror})") from error

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, what: str, **arguments: object) -> dict[str, Any]:
        """Send ``{"do": what, …}`` and wait for the answer. Raises ``CalibrationError`` in one sentence when the child
        answers an error, answers no JSON object, or has died."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it died: what it said last can still be read
            self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self._process.stdin.flush()
        line = self._read_line()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            rule = "must answer with a JSON object"
            raise CalibrationError(f"engine: {self._python}: {rule} (got {line.strip()[:80]!r})")
        if "error" in answer:
            raise CalibrationError(f"engine: {self._python}: {answer['error']}")
        return answer

    def stop(self) -> None:
        """Close its stdin, which tells it to end; a child that does not is killed."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                with suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = "" if self._process.stdout.closed else self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise CalibrationError(f"engine: {self._python}: ended with exit code {code}{self._last_words()}")
        return line

    def _last_words(self) -> str:
        if self._stderr.closed:
            return ""
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr if line.strip()]
        return f" ({lines[-1][:200]})" if lines else ""
