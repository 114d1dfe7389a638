"""What a run pushed through the model: tokens by what they were for, multiply-adds, and what speculation made of its
passes. Shown where variants differ in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.figure import Figure
from simserve.report.part_bars import Bars, Part, bars_figure
from simserve.report.words import count, dig, grouped, magnitude, number, ratio, share, times

Summary = Mapping[str, Any]
NEEDED = Part("needed once", "var(--kv-used)")
AGAIN = Part("computed again", "var(--kv-internal)")
REJECTED = Part("drafts that were rejected", "var(--kv-reserved)")
FOR_NOBODY = Part("for answers given up", "var(--kv-external)")
TOKEN_PARTS = (NEEDED, AGAIN, REJECTED, FOR_NOBODY)
MACS = Part("multiply-adds", "var(--kv-used)")
ACCEPTED, OWN = Part("accepted drafts", "var(--kv-used)"), Part("the target's own token", "var(--slot-decode)")
_SAME = 0.01  # a difference that nobody would call one


def work_figures(summaries: Mapping[str, Summary], expected: Mapping[str, float]) -> list[Figure]:
    """Figures where variants differ. ``expected`` are the tokens that a pass gives by the closed form, by variant."""
    return [*_tokens(summaries), *_macs(summaries), *_passes(summaries, expected)]


def token_parts(summary: Summary) -> dict[str, float]:
    """Computed tokens by what they were for; the parts add up to all of them."""
    rejected = dig(summary, "speculation.rejected_tokens") or 0.0
    rest = {
        AGAIN.name: dig(summary, "recomputed_tokens") or 0.0,
        REJECTED.name: rejected,
        FOR_NOBODY.name: dig(summary, "abandoned_tokens") or 0.0,
    }
    return {NEEDED.name: max(0.0, (dig(summary, "computed_tokens") or 0.0) - sum(rest.values())), **rest}


def _tokens(summaries: Mapping[str, Summary]) -> Sequence[Figure]:
    totals = {name: dig(summary, "computed_tokens") or 0.0 for name, summary in summaries.items()}
    if not _differ(list(totals.values())):
        return ()
    first = next(iter(totals.values()))
    texts = {name: f"{count(total)} tokens ({times(ratio(total, first))})" for name, total in totals.items()}
    caption = f"Pushed through the model: {grouped(texts)}, against the first variant."
    sizes = {name: token_parts(summary) for name, summary in summaries.items()}
    return (bars_figure(Bars("work-tokens", "Tokens through the model", "tokens", TOKEN_PARTS, sizes, caption)),)


def _macs(summaries: Mapping[str, Summary]) -> Sequence[Figure]:
    macs = {name: dig(summary, "model_macs") for name, summary in summaries.items()}
    known = {name: value for name, value in macs.items() if value is not None}
    if not _differ(list(known.values())):
        return ()
    caption = (
        f"Products with weights and attention's, by formula: {grouped({n: magnitude(v) for n, v in known.items()})}."
    )
    if any(dig(summary, "recomputed_tokens") for summary in summaries.values()):
        caption += " Computed again at every step, tokens grow with the square of a length and attention with its cube."
    if any(dig(summary, "speculation.num_passes") for summary in summaries.values()):
        caption += " Those of the draft model are not in them."
    sizes = {name: {MACS.name: value} for name, value in known.items()}
    return (bars_figure(Bars("work-macs", "Multiply-adds", "multiply-adds", (MACS,), sizes, caption)),)


def _passes(summaries: Mapping[str, Summary], expected: Mapping[str, float]) -> Sequence[Figure]:
    """Tokens per pass, as simulated and by the formula."""
    speculating = {name: summary for name, summary in summaries.items() if dig(summary, "speculation.num_passes")}
    if not speculating:
        return ()
    sizes, texts = {}, {}
    for name, summary in speculating.items():
        per_pass = dig(summary, "speculation.tokens_per_pass") or 0.0
        sizes[name] = {OWN.name: min(1.0, per_pass), ACCEPTED.name: max(0.0, per_pass - 1.0)}
        accepted = share(dig(summary, "speculation.acceptance_rate"))
        texts[name] = f"{number(per_pass)} tokens a pass, {accepted} of the drafts accepted"
    caption = (
        f"{grouped(texts)}. The mark is (1 − α^(γ+1)) / (1 − α): a little more, because an answer's last pass is cut "
        "off where it ends."
    )
    bars = Bars("work-passes", "Tokens per pass", "tokens per sequence and pass", (OWN, ACCEPTED), sizes, caption)
    marks = {name: expected[name] for name in speculating if name in expected}
    return (bars_figure(bars, marks, "by the formula"),)


def _differ(values: Sequence[float]) -> bool:
    return bool(values) and max(values) > (1 + _SAME) * min(values)
