"""A shell command that starts a vLLM server, taken apart: the server's own arguments, the environment, the version.

Known shapes: ``vllm serve …``, ``python -m vllm.entrypoints.openai.api_server …``, and ``docker run …
vllm/vllm-openai:v0.19.0 …``, each with variables set before it, words such as ``nohup`` or ``uv run`` in front, other
commands joined to it, and its output sent elsewhere.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simserve.errors import InputError
from simserve.scenario.messages import printable
from simserve.vllm_flags.known import names

FLAG = "--from-vllm"
_API_SERVER = re.compile(r"vllm\.entrypoints\.(openai\.)?(api_server|cli\.main)")
_IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm[\w.-]*(?::(?P<tag>[\w.-]+))?(?:@sha256:\w+)?", re.IGNORECASE)
_CONTAINERS = ("docker", "podman", "nerdctl")
_NAMING = names("--name --hostname -h --network --net --entrypoint --label -l -v --volume -e --env -w -u --user")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
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
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text)  # a line goes on after a backslash
    try:
        words = shlex.split(joined, comments=False)
    except ValueError as error:
        raise InputError(printable(f"{FLAG}: is not a shell command ({str(error).lower()})")) from None
    environment: dict[str, str] = {}
    for part in _parts(words):
        command = _server(part, environment)
        if command is not None:
            return command
        environment |= _assignments(part)  # `export A=1; vllm serve …`
    raise InputError(
        printable(
            f"{FLAG}: must start a vLLM server: 'vllm serve MODEL …', 'python -m vllm.entrypoints.openai.api_server …' "
            f"or 'docker run … vllm/vllm-openai …' (got {shlex.join(words)[:80]!r})"
        )
    )


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
