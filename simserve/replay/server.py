"""The server as requests see it: its address, the key that it wants, and the bytes of requests to it."""

from __future__ import annotations

from simserve.replay.address import Address
from simserve.replay.errors import ReplayError


class Server:
    """The key goes into the header of requests and nowhere else."""

    def __init__(self, address: Address, api_key: str | None = None) -> None:
        key = (api_key or "").strip()
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ReplayError("--api-key: must be one word of ASCII on one line (got something else)")
        self.address = address
        self._key = key
        self._headers = [f"Host: {address}", "Accept: text/event-stream, application/json", "Accept-Encoding: identity"]
        self._headers += [f"Authorization: Bearer {key}"] * bool(key)

    def get(self, path: str) -> bytes:
        """The bytes of a GET."""
        return "\r\n".join([f"GET {self.address.base_path}{path} HTTP/1.1", *self._headers, "", ""]).encode()

    def post(self, path: str, body: bytes) -> bytes:
        """The bytes of a POST of JSON."""
        length = f"Content-Length: {len(body)}"
        start = f"POST {self.address.base_path}{path} HTTP/1.1"
        return "\r\n".join([start, *self._headers, "Content-Type: application/json", length, "", ""]).encode() + body

    def scrub(self, text: str) -> str:
        """``text`` without the key, which some servers repeat in what they answer."""
        return text.replace(self._key, "…") if self._key else text
