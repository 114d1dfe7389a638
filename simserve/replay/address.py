"""Where the server is: the URL that a user typed, without whatever secret it holds."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from simserve.replay.errors import ReplayError

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Address:
    """Scheme, host, port and the path before ``/v1``."""

    scheme: str
    host: str
    port: int
    base_path: str

    def __str__(self) -> str:
        """``host:port``, all of it that a Host header and messages show."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL again, free of user names, passwords and queries."""
        return f"{self.scheme}://{self}{self.base_path}"


def parse_address(url: str) -> Address:
    """``http://HOST[:PORT]`` with an optional path, ``/v1`` at its end included or not. Raises ReplayError, whose
    message never repeats a password."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ReplayError("URL: must be http://HOST:PORT (got one with a port or host that is none)") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        got = "one that is not" if "@" in url else repr(url[:60])
        raise ReplayError(f"URL: must be http://HOST:PORT or https://HOST:PORT (got {got})")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    if not (parts.hostname + path).isascii() or any(ord(c) <= 32 or ord(c) == 127 for c in parts.hostname + path):
        raise ReplayError("URL: must be http://HOST:PORT in ASCII, without spaces or control characters")
    return Address(parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port, path)
