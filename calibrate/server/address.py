"""Where a server is: the URL that a user typed, without whatever secret it holds."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from calibrate.errors import CalibrationError

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Address:
    """Scheme, host, port and the path before ``/v1``; user names, passwords and queries are dropped on the way here."""

    scheme: str
    host: str
    port: int
    base_path: str

    def __str__(self) -> str:
        """``host:port``, all of a URL that messages and profiles may show."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL again, free of secrets."""
        return f"{self.scheme}://{self}{self.base_path}"


def parse_address(url: str) -> Address:
    """``http://HOST:PORT`` with an optional path, ``/v1`` at its end included or not. Raises ``CalibrationError``,
    whose message never repeats a password."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise CalibrationError("url: must be http://HOST:PORT (got one with a port or host that is none)") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        shown = url if "@" not in url else "one that is not"
        raise CalibrationError(f"url: must be http://HOST:PORT or https://HOST:PORT (got {shown})")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    if any(ord(character) <= 32 for character in parts.hostname + path):
        raise CalibrationError("url: must be http://HOST:PORT, without spaces or control characters")
    return Address(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path)
