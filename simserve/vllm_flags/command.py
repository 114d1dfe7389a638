"""A shell command that starts a vLLM server, taken apart: the server's own arguments, the environment, the version.

Known shapes: ``vllm serve …``, ``python -m vllm.entrypoints.openai.api_server …``, and ``docker run …
vllm/vllm-openai:v0.19.0 …``, each with variables set before it, words such as ``nohup`` or ``uv run`` in front, other
commands joined to it, and its output sent elsewhere.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import Template

from simserve.errors import InputError
from simserve.scenario.messages import printable
from simserve.vllm_flags.known import names

FLAG = "--from-vllm"
_API_SERVER = re.compile(r"vllm\.entrypoints\.(openai\.)?(api_server|cli\.main)")
_IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm[\w.-]*(?::(?P<tag>[\w.-]+))?(?:@sha256:\w+)?", re.IGNORECASE)
_CONTAINERS = ("docker", "podman", "nerdctl")
_NAMING = names("--name --hostname -h --network --net --entrypoint --label -l -v --volume -e --env -w -u --user")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_NEXT = " ; "
_DASH = re.compile(r"\s*-")
_JOINS = {"&&", "||", ";", "|", "&"}
_REDIRECT = re.compile(r"(?:\d|&)?(?:>>?|<)(?P<target>.*)", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """What is left of a command: ``arguments`` after the program's name (and ``serve``), the variables set for it, and
    the tag of its image."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    image_tag: str | None = None


def parse_command(text: str) -> Command:
    """The one vLLM server that a shell command starts. Raises InputError: quotes left open, or no such server."""
    try:
        words = shlex.split(one_line(text), comments=False)
    except ValueError as error:
        raise InputError(printable(f"{FLAG}: is not a shell command ({str(error).lower()})")) from None
    environment: dict[str, str] = {}
    for part in _parts(words):
        command = _server(part, environment)
        if command is not None:
            known = command.environment
            expanded = (Template(word).safe_substitute(known) for word in command.arguments)
            return replace(command, arguments=tuple(expanded))
        environment |= _assignments(part)  # `export A=1; vllm serve …`
    raise InputError(
        printable(
            f"{FLAG}: must start a vLLM server: 'vllm serve MODEL …', 'python -m vllm.entrypoints.openai.api_server …' "
            f"or 'docker run … vllm/vllm-openai …' (got {shlex.join(words)[:80]!r})"
        )
    )


def one_line(text: str) -> str:
    """A script's lines as one, joined by semicolons, without comments. A line that ends in a backslash goes on, and so
    does one before a line that begins with a dash, which no command does."""
    out, quote, at = [], "", 0
    text = re.sub(r"\\[ \t]+\n", "\\\\\n", text.replace("\r\n", "\n"))
    while at < len(text):
        letter, after = text[at], text[at + 1 : at + 2]
        if letter == "\\" and quote != "'":
            out.append(" " if after == "\n" else letter + after)
            at += 2
            continue
        if not quote and letter == "#" and (not out or out[-1].isspace() or out[-1] == _NEXT):
            at = end if (end := text.find("\n", at)) >= 0 else len(text)
            continue
        if letter in "'\"" and quote in ("", letter):
            quote = "" if quote else letter
        goes_on = letter == "\n" and _DASH.match(text, at) is not None
        out.append(letter if quote or letter != "\n" else " " if goes_on else _NEXT)
        at += 1
    return "".join(out)


def _parts(words: Sequence[str]) -> list[list[str]]:
    """The commands of a line, without what joins them and without redirections."""
    parts: list[list[str]] = [[]]
    skip = False
    for word in words:
        redirect = _REDIRECT.fullmatch(word)
        if skip:
            skip = False
        elif word in _JOINS:
            parts.append([])
        elif redirect is not None:
            skip = not redirect["target"]
        elif word.endswith(";"):
            parts[-1].append(word.rstrip(";"))
            parts.append([])
        else:
            parts[-1].append(word)
    return [part for part in parts if part]


def _server(words: Sequence[str], environment: Mapping[str, str]) -> Command | None:
    for at, word in enumerate(words):
        base = word.rsplit("/", 1)[-1]
        if base in _CONTAINERS and "run" in words[at + 1 :]:
            return _in_container(words, at, environment)
        before = {**environment, **_assignments(words[:at])}
        if base == "vllm" and words[at + 1 : at + 2] == ["serve"]:
            return Command(tuple(words[at + 2 :]), before)
        if _API_SERVER.fullmatch(word):
            rest = words[at + 1 :]
            return Command(tuple(rest[1:] if rest[:1] == ["serve"] else rest), before)
    return None


def _in_container(words: Sequence[str], at: int, environment: Mapping[str, str]) -> Command | None:
    """The server in an image that is called vllm-something: what follows the image goes to its entry point."""
    for place in range(at + 2, len(words)):
        image = _IMAGE.fullmatch(words[place])
        if image is None or words[place - 1] in _NAMING:  # `--name vllm` is a container's name
            continue
        inside = list(words[place + 1 :])
        server = _server(inside, {})
        if server is not None:
            inside = list(server.arguments)
        elif inside[:1] == ["serve"]:  # `--entrypoint vllm IMAGE serve …`
            inside = inside[1:]
        options = words[at:place]
        set_there = {**environment, **_assignments(words[:at]), **_assignments(options)}
        return Command(tuple(inside), {**set_there, **(server.environment if server else {})}, image["tag"])
    return None


def _assignments(words: Sequence[str]) -> dict[str, str]:
    """``NAME=value`` among words, also as ``-eNAME=value`` or ``--env=NAME=value``."""
    found = {}
    for word in words:
        bare = re.sub(r"^(--env=|-e(?=[A-Z]))", "", word)
        if _ASSIGNMENT.fullmatch(bare) and not word.startswith("--env-file"):
            name, _, value = bare.partition("=")
            found[name] = value
    return found
