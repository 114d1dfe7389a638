"""Tables of points that lie on no grid: the laws, evaluated where the points reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from calibrate.importers.laws import (
    DecodeLaw,
    LeftOut,
    PrefillLaw,
    fit_decode,
    fit_prefill,
    leave_out_contexts,
    leave_out_prompts,
    tokens_of,
)
from calibrate.importers.reading import PrefillTimes
from simserve.errors import ProfileError
from simserve.step_time.profile_schema import Table, TableRow
from simserve.step_time.source import MeasuredPoint
from simserve.step_time.surface import Surface


def decode_by_law(decodes: Sequence[MeasuredPoint]) -> tuple[Table, list[LeftOut], list[str]]:
    """The table of scattered decodes, its points left out by context (the outermost not among them), and notes. Raises
    ``ProfileError`` for too few points, or such as do not grow with batch and context."""
    law = fit_decode(decodes)
    table = _decode_table(law, decodes)
    left = leave_out_contexts(decodes) if len({p.num_context_tokens for p in decodes}) > 3 else []
    notes = [_decode_words(law), *_extrapolation_words(left), _table_words(law, decodes, table)]
    return table, [each for each in left if not each.extrapolated], notes


def prefill_by_law(
    prefills: Sequence[MeasuredPoint], times: PrefillTimes, decode_one_s: float
) -> tuple[Table, list[LeftOut], list[str]]:
    """The table of scattered prefills, its inner points left out, and notes. Of times to first token, what a prompt of
    one token would take beyond ``decode_one_s``, a decode of one sequence, is no part of the step. Raises
    ``ProfileError``."""
    law = fit_prefill(prefills)
    notes, outside_s = [], 0.0
    if times == "ttft":
        outside_s = max(0.0, law.at(1) - decode_one_s)
        notes.append(
            f"prefill times are times to first token: the {1e3 * outside_s:.1f} ms by which a prompt of one token "
            "would exceed a decode of one sequence are a request's own work and are left out of the steps, so add them "
            "to TTFT; held-out errors are of the times as measured, and samples hold these"
        )
    if all(p.num_context_tokens == 0 for p in prefills):
        notes.append(
            "prefills over cached context were not measured: their cost follows from the part of a prompt's time that "
            "grows with its square, and is flagged as extrapolated"
        )
    if law.pair_s == 0.0:
        notes.append("prompts are of one length, so what their attention costs is in the cost per token")
    return _prefill_table(law, prefills, outside_s, times), leave_out_prompts(prefills), notes


def _decode_table(law: DecodeLaw, decodes: Sequence[MeasuredPoint]) -> Table:
    """Rows at powers of two up to the largest batch, each over the contexts that were measured at such batches."""
    largest = max(p.batch_size for p in decodes)
    first = min(p.num_context_tokens for p in decodes)
    smallest = min(p.batch_size for p in decodes)
    batches = {smallest, largest} | {2**k for k in range(largest.bit_length()) if smallest <= 2**k <= largest}
    rows = []
    for batch in sorted(batches):
        last = max(first + 1, _reach(batch, decodes))
        seconds = law.at(batch, first), law.at(batch, last)
        _require_growth("decode", f"batch {batch}", seconds)
        rows.append(TableRow(row=batch, contexts=(first, last), seconds=seconds))
    _require_rows("decode", rows)
    return Table(rows=tuple(rows))


def _reach(batch: int, decodes: Sequence[MeasuredPoint]) -> int:
    """The largest context measured at ``batch``, between those of its neighbours on a logarithmic scale of batches."""
    edge: dict[int, int] = {}
    for p in sorted(decodes, key=lambda p: -p.batch_size):
        longest = max(p.num_context_tokens, *edge.values()) if edge else p.num_context_tokens
        edge[p.batch_size] = longest
    sizes = sorted(edge)
    return int(np.interp(math.log(batch), np.log(sizes), [edge[size] for size in sizes]))


def _prefill_table(law: PrefillLaw, prefills: Sequence[MeasuredPoint], outside_s: float, times: PrefillTimes) -> Table:
    """Rows at the measured lengths, and at one token where a decode tells what that takes. A context of one token
    beside none carries the slope and no more, so that whatever was not measured is flagged."""
    longest: dict[int, int] = {1: 1} if times == "ttft" else {}
    for p in prefills:
        longest[tokens_of(p)] = max(1, p.num_context_tokens, longest.get(tokens_of(p), 1))
    rows = []
    for new, last in sorted(longest.items()):
        seconds = law.at(new) - outside_s, law.at(new, last) - outside_s
        _require_growth("prefill", f"{new} tokens", seconds)
        rows.append(TableRow(row=new, contexts=(0, last), seconds=seconds))
    _require_rows("prefill", rows)
    return Table(rows=tuple(rows))


def _require_growth(phase: str, where: str, seconds: tuple[float, float]) -> None:
    if not 0 < seconds[0] <= seconds[1] < math.inf:
        first, last = (f"{1e3 * s:.3g} ms" for s in seconds)
        rule = "step times must be positive and grow with context"
        raise ProfileError(f"{phase}: {where}: {rule} (got {first} to {last})")


def _require_rows(phase: str, rows: Sequence[TableRow]) -> None:
    for lower, upper in pairwise(rows):
        if upper.seconds[0] < lower.seconds[0]:
            raise ProfileError(
                f"{phase}: step times must grow from row {lower.row} to row {upper.row} "
                f"(got {1e3 * lower.seconds[0]:.3g} and {1e3 * upper.seconds[0]:.3g} ms)"
            )


def _decode_words(law: DecodeLaw) -> str:
    constant, load = f"{1e3 * law.constant_s:.3f} ms", f"batch^{law.exponent:.2f}"
    per_sequence = f"({1e6 * law.sequence_s:.2f} µs + {1e9 * law.token_s:.2f} ns · context)"
    return (
        f"decode tables follow {constant} + {load} · {per_sequence}, fitted with a mean error of {law.mean_error:.1%}; "
        "the samples are what was measured"
    )


def _table_words(law: DecodeLaw, decodes: Sequence[MeasuredPoint], table: Table) -> str:
    surface = Surface(table)
    worst = max(
        abs(surface.curve(p.batch_size).at(p.num_context_tokens) / law.at(p.batch_size, p.num_context_tokens) - 1)
        for p in decodes
    )
    return f"the table, linear between batch sizes, departs from the law by {worst:.2%} at most on the measured points"


def _extrapolation_words(left: Sequence[LeftOut]) -> list[str]:
    outer = sorted({each.point.num_context_tokens for each in left if each.extrapolated})
    if not outer:
        return ["decodes: too few contexts to leave one out, so their error is not known"]
    parts = []
    for context in outer:
        errors = [each.error for each in left if each.point.num_context_tokens == context]
        parts.append(f"{context:,} tokens {sum(errors) / len(errors):.1%} (worst {max(errors):.1%})")
    return [
        "held-out decodes are contexts predicted from all other contexts; the outermost, which is extrapolation, are "
        f"counted apart: {', '.join(parts)}"
    ]
