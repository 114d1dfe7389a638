"""Open-loop load on an OpenAI-compatible server: each request at its own time, whatever the server does.

``http_parser``, ``sse`` and ``answer`` turn bytes into counted tokens and do no input or output; ``connection``,
``pool`` and ``exchange`` carry the bytes of one request and its answer; ``client`` sends one request, with its retries,
and ``load`` all of them in time. ``negotiate`` finds out beforehand what the server understands. Only the standard
library: a client library would hide when bytes arrive and when a connection is opened, and both decide what TTFT means.
"""
