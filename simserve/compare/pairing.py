"""Which variant of one run is compared with which of the other."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from simserve.compare.read import Run
from simserve.errors import RunError


@dataclass(frozen=True)
class Pairing:
    """Pairs (variant of A, variant of B), and the variants of either that stay alone."""

    pairs: tuple[tuple[str, str], ...]
    alone_a: tuple[str, ...] = ()
    alone_b: tuple[str, ...] = ()


def pair_variants(a: Run, b: Run, chosen_a: str | None = None, chosen_b: str | None = None) -> Pairing:
    """Same names pair, in A's order; the only variants of two runs pair whatever their names.

    A chosen variant is paired with the other chosen one, else with its namesake, else with the other run's only one.
    Raises RunError when a chosen variant does not exist, or nothing would pair.
    """
    if chosen_a is not None or chosen_b is not None:
        first = _partner(a, "a", chosen_a, chosen_b)
        second = _partner(b, "b", chosen_b, chosen_a)
        pairs = [(first, second)]
    elif len(a.variants) == len(b.variants) == 1:
        pairs = [(a.variants[0], b.variants[0])]
    else:
        pairs = [(name, name) for name in a.variants if name in b.variants]
    if not pairs:
        raise RunError(
            f"{b.folder}: must share a variant's name with {a.folder} (it has {_listed(b.variants)}, the other "
            f"{_listed(a.variants)}); choose with --variant-a and --variant-b"
        )
    left_a = [name for name in a.variants if name not in {first for first, _ in pairs}]
    left_b = [name for name in b.variants if name not in {second for _, second in pairs}]
    return Pairing(tuple(pairs), tuple(left_a), tuple(left_b))


def _partner(run: Run, side: str, chosen: str | None, other: str | None) -> str:
    """The variant of ``run`` that was chosen, or that fits the one chosen of the other run."""
    if chosen is not None:
        if chosen not in run.variants:
            close = difflib.get_close_matches(chosen, run.variants, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {_listed(run.variants)}"
            raise RunError(f"{run.folder}: --variant-{side}: must be a variant of this run (got {chosen!r}); {hint}")
        return chosen
    if other in run.variants:
        return str(other)
    if len(run.variants) == 1:
        return run.variants[0]
    raise RunError(
        f"{run.folder}: --variant-{side}: must say which variant meets {other!r} (it has {_listed(run.variants)}); "
        f"add --variant-{side}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
