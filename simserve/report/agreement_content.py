"""What a draft is worth to its target: acceptance by position, and what that makes of a pass."""

from __future__ import annotations

from pathlib import Path

from simserve.report.content import Section
from simserve.report.figure import Figure, Table
from simserve.report.quality_content import QualityContent, in_words
from simserve.report.study_measures import Measure
from simserve.report.study_ranges import Estimate as Dot
from simserve.report.study_ranges import estimate_chart
from simserve.report.words import number, plural, share
from simserve.speculation.formula import mean_speedup, mean_tokens_per_pass
from simserve.step_time.quality_schema import DraftAgreement

ACCEPTANCE = Measure("acceptance", "drafts accepted, of those that were reached", "portion")
TOKENS = Measure("tokens", "tokens per pass")
COSTS = (0.02, 0.05, 0.1, 0.2, 0.5)
WORDS = [
    ("pass", "the draft proposes so many tokens, the target checks them all in one step"),
    ("acceptance", "of the passes that accepted every draft before, the share that accepted this one too"),
    ("tokens per pass", "accepted drafts and the target's own token"),
    ("cost", "of a draft's step, as a share of the target's"),
    ("95 %", "as if passes were independent, which neighbours in one answer are not quite"),
]


def agreement_content(document: DraftAgreement) -> QualityContent:
    """Everything that the template prints, in its order."""
    made, draft = in_words(document.tokens_per_pass, TOKENS), Path(document.draft).name
    size = f"{document.draft_parameters:,} of {document.target_parameters:,} parameters"
    return QualityContent(
        name=document.name,
        headline=f"{draft} drafts for {Path(document.target).name}: {made} tokens a pass of {document.draft_tokens}, "
        f"and {share(document.agreement.value)} of all tokens are the ones that the target would choose.",
        badges=[],
        facts=[
            ("draft", f"{draft}, {size}"),
            ("judged on", f"{plural(document.num_answers, 'answer')} to {document.text.name}, greedily"),
            ("passes", f"{document.num_passes:,} of {document.draft_tokens} drafted tokens"),
            ("in a scenario", "engine.speculation.acceptance: {measured: FILE}"),
        ],
        summary_intro="By position in the draft; in brackets intervals of 95 %.",
        summary=_summary(document),
        words=WORDS,
        sections=[_positions(document), _worth(document)],
        made_with=document.model_dump(include={"name", "seed", "digest", "text", "software"}),
    )


def _summary(document: DraftAgreement) -> Table:
    rows = zip(document.accepted, document.tried, document.intervals, strict=True)
    return Table(
        ("draft token", "accepted", "of", "acceptance"),
        tuple(
            (str(i), f"{accepted:,}", f"{tried:,}", in_words(interval, ACCEPTANCE))
            for i, (accepted, tried, interval) in enumerate(rows, 1)
        ),
    )


def _positions(document: DraftAgreement) -> Section:
    dots = [Dot(f"draft token {i}", each.model_dump(), "", "var(--c0)") for i, each in enumerate(document.intervals, 1)]
    shares = ", ".join(share(each) for each in document.acceptance)
    caption = f"Accepted, given that all before were: {shares}. The first is what most papers call acceptance."
    figure = Figure(
        "agreement-positions", "Acceptance by position", caption, estimate_chart(ACCEPTANCE, dots), wide=True
    )
    return Section("positions", "Acceptance", "Simulations draw with these, position by position.", (figure,))


def _worth(document: DraftAgreement) -> Section:
    """What drafts of each length would gain, by the closed form."""
    rows = tuple(
        (
            str(gamma),
            number(mean_tokens_per_pass(document.acceptance[:gamma])),
            *(f"{mean_speedup(document.acceptance[:gamma], cost):.2f}×" for cost in COSTS),
        )
        for gamma in range(1, len(document.acceptance) + 1)
    )
    head = ("drafted tokens", "tokens per pass", *(f"draft costs {cost:g}" for cost in COSTS))
    intro = (
        "Speed of an answer over the plain engine's by the closed form, where checking a draft takes no longer than a "
        "decode step: a full batch gains less, and simserve sweep says how much."
    )
    return Section("worth", "What it would gain", intro, table=Table(head, rows))
