"""Arguments of ``vllm serve`` to values by flag, whatever their order and spelling.

The rules are those of vLLM's parser (``FlexibleArgumentParser`` on Python's argparse): underscores count as dashes, a
value follows a space or ``=``, short forms and unmistakable beginnings of a name will do, ``--no-NAME`` turns a switch
round, ``--config FILE`` stands for the flags in that file, and of two that contradict the last one holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from simserve.errors import InputError
from simserve.scenario.messages import did_you_mean, printable
from simserve.scenario.yaml_file import read_yaml
from simserve.vllm_flags.known import LISTS, MARKS, ONLY_0_19, ONLY_0_32, OTHER_NAMES, SHORT_FORMS, SWITCHES, VALUES
from simserve.vllm_flags.older import OLDER

Value = str | bool | tuple[str, ...]
VERSIONS = ("0.19", "0.32")
KNOWN = SWITCHES | MARKS | LISTS | VALUES
_NOT_IN = {"0.19": ONLY_0_32, "0.32": ONLY_0_19}
_NO_VALUE = SWITCHES | MARKS | {name for name, arity in OLDER.items() if not arity}


@dataclass(frozen=True)
class Flags:
    """The model, if one was named by place, and what each flag was given (names without dashes); ``foreign`` are flags
    of another vLLM than ``version``."""

    version: str
    model: str | None = None
    given: Mapping[str, Value] = field(default_factory=dict)
    foreign: Mapping[str, Value] = field(default_factory=dict)


def parse_flags(arguments: Sequence[str], version: str) -> Flags:
    """The flags of a server's arguments. Raises InputError in one sentence, as the server would refuse to start."""
    reader = _Reader(version, _with_config_file(list(arguments)))
    while reader.words:
        reader.take()
    given = {name: value for name, value in reader.given.items() if name in KNOWN - _NOT_IN[version]}
    foreign = {name: value for name, value in reader.given.items() if name not in given}
    named = given.pop("model", None)
    if len(reader.places) + (named is not None) > 1:
        models = " and ".join(repr(model) for model in (*reader.places, *([named] if named is not None else [])))
        raise InputError(printable(f"vllm serve: takes one model (got {models}); give every flag its dashes"))
    return Flags(version, str(named) if named is not None else next(iter(reader.places), None), given, foreign)


@dataclass
class _Reader:
    """A list of words, eaten from the front."""

    version: str
    words: list[str]
    given: dict[str, Value] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)

    def take(self) -> None:
        word = self.words.pop(0)
        if word.startswith("-") and word not in ("-", "--") and not _is_number(word):
            self._take_flag(word)
        elif word != "--":
            self.places.append(word)

    def _take_flag(self, word: str) -> None:
        key, equals, text = word.partition("=")
        value = text if equals else None
        if not key.startswith("--"):
            key, value = _long_form(key, value)
        name, dot, inner = key[2:].partition(".")
        name, turned = _full_name(name.replace("_", "-"), key, self.version)
        if name in _NO_VALUE:
            if value is not None:
                raise InputError(printable(f"--{name}: takes no value (got {value!r}); its opposite is --no-{name}"))
            self.given[name] = not turned
            return
        before = self.given.pop(name, None)
        if name in LISTS:
            self.given[name] = (value,) if value is not None else self._values(name)
        else:
            one = value if value is not None else self._value(name)
            part = f"{inner}={one}"
            self.given[name] = one if not dot else part if before is None else f"{before}, {part}"

    def _value(self, name: str) -> str:
        if self.words and (not self.words[0].startswith("-") or _is_number(self.words[0])):
            return self.words.pop(0)
        if name == "hf-token":
            return ""
        raise InputError(f"--{name}: needs a value")

    def _values(self, name: str) -> tuple[str, ...]:
        values = [self._value(name)]
        while self.words and not self.words[0].startswith("-"):
            values.append(self.words.pop(0))
        return tuple(values)


def _long_form(key: str, value: str | None) -> tuple[str, str | None]:
    """``-tp`` and ``-tp=2``; ``-O3`` and ``-q awq`` also without a space, as one-letter flags may be written."""
    short, dot, inner = key[1:].partition(".")
    if short in SHORT_FORMS:
        return f"--{SHORT_FORMS[short]}{dot}{inner}", value
    if short[:1] in SHORT_FORMS and value is None:
        return f"--{SHORT_FORMS[short[0]]}", key[2:]
    forms = ", ".join(f"-{form}" for form in SHORT_FORMS)
    raise InputError(printable(f"{key}: is not a flag of vllm serve; short forms: {forms}"))


def _full_name(name: str, key: str, version: str) -> tuple[str, bool]:
    """A flag's full name, and whether ``--no-`` turned it round."""
    everywhere = _spellings(KNOWN | set(OLDER))
    if name in everywhere:
        return everywhere[name]
    own = _spellings(KNOWN - _NOT_IN[version])
    meant = {own[known] for known in own if name and known.startswith(name)}
    if len(meant) == 1:
        return meant.pop()
    if meant:
        several = ", ".join(sorted(f"--{'no-' * turned}{known}" for known, turned in meant)[:4])
        raise InputError(printable(f"{key}: may mean {several}; write it out"))
    hint = did_you_mean(name, own) if name else ""
    hint = f"; {hint}" if hint.startswith("did") else "; `vllm serve --help=all` lists them"
    raise InputError(printable(f"{key}: is not a flag of vllm serve {version}{hint}"))


def _spellings(names: Set[str]) -> dict[str, tuple[str, bool]]:
    every = {name: (name, False) for name in names}
    every |= {f"no-{name}": (name, True) for name in names & SWITCHES}
    return every | {other: (name, False) for other, name in OTHER_NAMES.items() if name in names}


def _with_config_file(words: list[str]) -> list[str]:
    """``--config FILE`` replaced by the file's flags, put in front so that those typed hold."""
    at = next((i for i, word in enumerate(words) if word == "--config" or word.startswith("--config=")), None)
    if at is None:
        return words
    _, equals, name = words[at].partition("=")
    end = at + 1 if equals else at + 2
    if not equals and end > len(words):
        raise InputError("--config: needs a value")
    path = Path(name if equals else words[at + 1])
    data = read_yaml(path)
    if not isinstance(data, Mapping):
        raise InputError(printable(f"{path}: must be a mapping of flags to values, as vLLM's --config reads it"))
    typed = [*words[:at], *words[end:]]
    model_typed = any(word == "--model" or word.startswith("--model=") for word in typed)
    places = bool(typed) and not typed[0].startswith("-")
    drop = {"model"} if model_typed or places else set()
    return [*_file_words({key: value for key, value in data.items() if key not in drop}), *typed]


def _file_words(data: Mapping[str, object]) -> list[str]:
    """Flags of a configuration file as words; switches that are off are left out, as 0.19 does, or turned."""
    words = []
    for key, value in data.items():
        name = str(key).replace("_", "-")
        if isinstance(value, bool):
            words += [f"--{name}"] if value else [f"--no-{name}"] if name in SWITCHES else []
        elif isinstance(value, list):
            words += [f"--{name}", *map(str, value)] if value else []
        else:
            words.append(f"--{name}={value}")
    return words


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
