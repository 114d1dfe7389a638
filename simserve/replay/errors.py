"""What goes wrong with a server, and with the command line's input."""

from __future__ import annotations

from simserve.errors import InputError


class ReplayError(InputError):
    """The URL, the model or an option is wrong, or no server answers there: one sentence, exit code 2."""


class BrokenAnswer(Exception):
    """The connection failed, or what came over it is no answer: one request's misfortune, in a few words."""


class Refused(Exception):
    """The server answered, with a status other than 200. ``retry_after_s`` is what it asked for, 0 if nothing."""

    def __init__(self, status: int, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"HTTP {status}" + (f": {reason}" if reason else ""))
        self.status = status
        self.retry_after_s = retry_after_s
