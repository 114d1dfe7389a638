"""A pydantic error in one sentence: ``skewed64.yaml: engine.kv_cache.block_size: must be ≥ 1 (got 0)``."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sized
from decimal import Decimal
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simserve.scenario.kinds import choice_at

Path = tuple[int | str, ...]
_LONG, _MAX_DIGITS = 1e15, 12  # numbers beyond, or of more characters, are told with an exponent

_LIMITS = {
    "greater_than_equal": ("≥", "ge"),
    "greater_than": (">", "gt"),
    "less_than_equal": ("≤", "le"),
    "less_than": ("<", "lt"),
}
_TYPES = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "invalid_key": "keys must be text",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


def one_sentence(error: ValidationError, model: type[BaseModel], where: str, prefix: Path = ()) -> str:
    """The first problem, as ``where: key.path: rule (got value)``, and how many more there are. Unknown keys come
    first: a misspelt key explains the one that is then missing. ``prefix`` is where the model stands in the file."""
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    path, rule = _explain(problems[0], model)
    at = _dotted((*prefix, *path))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return printable(f"{where}: {at}: {rule}{more}" if at else f"{where}: {rule}{more}")


def printable(text: str) -> str:
    """Text on one line: what cannot be printed becomes an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: object) -> str:
    """A value as YAML would write it, short enough for a sentence."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "…")
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length() * 3 // 10} digits"
    return str(value)[:60]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean 'num_blocks'?``, or the list of what is known when nothing is near."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def _explain(problem: ErrorDetails, model: type[BaseModel]) -> tuple[Path, str]:
    """Where a problem is, and the rule that it breaks."""
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    path = tuple(part for part in problem["loc"] if not _is_tag(part) and part != "[key]")
    if kind.startswith("union_tag"):
        return _unnamed_kind(value, path)
    if kind in ("extra_forbidden", "missing"):
        parent, key = _section_model(problem["loc"], model), str(path[-1])
        if kind == "missing":
            return path, f"must be given ({parent.model_fields[key].description or parent.__doc__})"
        return path[:-1], _unknown_key(key, path[:-1], parent)
    if kind == "value_error":
        rule = str(context["error"])
        return path, rule if isinstance(value, Mapping) or "(got" in rule else f"{rule} (got {shown(value)})"
    if kind in ("too_short", "too_long") and isinstance(value, Sized) and len(value):
        return path, _number_of_entries(kind, context, path, len(value))
    return path, f"{_rule(kind, context, problem['msg'])} (got {shown(value)}{_hint(kind, value, context)})"


def _number_of_entries(kind: str, context: Mapping[str, Any], path: Path, found: int) -> str:
    """Of a list or a mapping that has some, and too few or too many."""
    bound, key = ("least", "min_length") if kind == "too_short" else ("most", "max_length")
    in_a_trace = kind == "too_long" and path[-1:] in {("values",), ("windows",)}
    remedy = "; put more in a trace file" if in_a_trace else ""
    return f"must have at {bound} {context[key]:,} entries (got {found:,}){remedy}"


def _rule(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind in _LIMITS:
        sign, key = _LIMITS[kind]
        return f"must be {sign} {context[key]:,}"
    if kind == "string_too_long":
        return f"must have at most {context['max_length']} characters"
    if kind == "literal_error":
        return f"must be {context['expected']}"
    return _TYPES.get(kind, message[:1].lower() + message[1:])


def _hint(kind: str, value: object, context: Mapping[str, Any]) -> str:
    """``; did you mean 'fcfs'?`` after a misspelt word; ``; write 1000`` after a number that YAML reads as text."""
    if kind == "literal_error" and isinstance(value, str):
        near = difflib.get_close_matches(value, re.findall(r"'([^']*)'", context["expected"]), n=1)
        return f"; did you mean {near[0]!r}?" if near else ""
    if kind not in ("int_type", "float_type") or not isinstance(value, str | float):
        return ""
    try:
        number = float(value)
    except ValueError:
        return ""
    if not math.isfinite(number) or (kind == "int_type" and not (number.is_integer() and abs(number) < _LONG)):
        return ""
    return f", which YAML reads as {'text' if isinstance(value, str) else 'a fraction'}; write {_plain(number)}"


def _plain(number: float) -> str:
    """As YAML reads a number: with its digits all, or, where these are many, a point and a signed exponent."""
    if number.is_integer() and abs(number) < _LONG:
        return str(int(number))
    digits = f"{Decimal(repr(number)):f}"
    if len(digits) <= _MAX_DIGITS:
        return digits
    mantissa, _, exponent = f"{Decimal(repr(number)):e}".partition("e")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}e{exponent}"


def _unknown_key(key: str, path: Path, model: type[BaseModel]) -> str:
    choice = choice_at(path)
    owners = choice.kinds_with(key) if choice is not None else []
    if choice is not None and owners:
        kind = next(kind for kind, each in choice.kinds.items() if each is model)
        prefix = f"{choice.key}: " if choice.key else ""
        return f"{key!r} belongs to {prefix}{' or '.join(owners)} (got {prefix}{kind})"
    return f"unknown key {shown(key)} ({did_you_mean(key, model.model_fields)})"


def _unnamed_kind(section: object, path: Path) -> tuple[Path, str]:
    """A section that names none of its kinds, or several."""
    choice = choice_at(path)
    assert choice is not None  # pydantic met a tag there
    kinds = ", ".join(choice.kinds)
    if not isinstance(section, Mapping):
        return path, f"must be a mapping (got {shown(section)})"
    if choice.key is None:
        marks = ", ".join(choice.mark(kind) for kind in choice.kinds)
        given = " and ".join(shown(str(key)) for key in list(section)[:4]) or "an empty mapping"
        return path, f"must have exactly one of {marks} (got {given})"
    at = (*path, choice.key)
    if choice.key not in section:
        return at, f"must be given (one of {kinds})"
    value = section[choice.key]
    near = difflib.get_close_matches(str(value), choice.kinds, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return at, f"must be one of {kinds} (got {shown(value)}{hint})"


def _section_model(location: Path, model: type[BaseModel]) -> type[BaseModel]:
    """The model of the section that holds the last part of an error's location."""
    path: Path = ()
    for part in location[:-1]:
        if _is_tag(part):
            choice = choice_at(path)
            assert choice is not None
            model = choice.kinds[str(part)[1:-1]]
            continue
        path = (*path, part)
        if path[:-1] == ("workload", "tenants"):  # a name, and not a key of the model
            continue
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        inner = [each for each in (annotation, *get_args(annotation)) if isinstance(each, type)]
        model = next((each for each in inner if issubclass(each, BaseModel)), model)
    return model


def _is_tag(part: int | str) -> bool:
    return isinstance(part, str) and part.startswith("<") and part.endswith(">")


def _dotted(path: Path) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
