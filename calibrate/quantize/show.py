"""What rounding does, and what a draft is worth, on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from simserve.step_time.quality_schema import DraftAgreement, Estimate, Quality, Quantization


def show_quantization(document: Quantization, console: Console) -> None:
    """The tables of schemes, and what the figures mean."""
    what = f"{document.num_matrices} projection matrices, {document.num_weights:,} weights ({document.weights})"
    console.print(f"[bold]{document.name}[/]: {what}")
    console.print(_errors(document))
    console.print("bits: of one weight, scales included; error: ‖W − Ŵ‖ / ‖W‖, over the matrices")
    if document.full_precision and document.text:
        full = document.full_precision
        console.print(_qualities(document, full))
        console.print(
            f"on {full.num_windows} windows of {document.text.name}, and {full.num_tokens:,} tokens of "
            f"{full.num_answers} greedy answers; in brackets 95 %; *: perplexity was shown to differ"
        )
    if document.note:
        console.print(document.note)


def show_agreement(document: DraftAgreement, console: Console) -> None:
    """Acceptance by position, and what that makes of a pass."""
    size = f"{document.draft_parameters:,} of {document.target_parameters:,} parameters"
    console.print(f"[bold]{document.draft}[/] ({size}) drafts for [bold]{document.target}[/]")
    table = _table("draft token", "accepted", "of", "acceptance")
    rows = zip(document.accepted, document.tried, document.intervals, strict=True)
    for position, (accepted, tried, interval) in enumerate(rows, 1):
        share = f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"
        table.add_row(f"{position}", f"{accepted:,}", f"{tried:,}", share)
    console.print(table)
    made = document.tokens_per_pass
    console.print(
        f"{document.num_passes:,} passes of {document.draft_tokens} draft tokens made {made.value:.2f} tokens each "
        f"({made.low:.2f} to {made.high:.2f})"
    )
    console.print("in a scenario: engine.speculation.acceptance: {measured: FILE}", markup=False)


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _errors(document: Quantization) -> Table:
    table = _table("weights", "bits", "mean error", "worst", "in")
    for row in document.rows:
        errors = f"{row.mean_error:.4f}", f"{row.worst_error:.4f}"
        table.add_row(row.scheme, f"{row.bits_per_weight:.3f}", *errors, row.worst_matrix.removeprefix("model."))
    return table


def _qualities(document: Quantization, full: Quality) -> Table:
    table = _table("weights", "perplexity", f"over {document.dtype}", "equal tokens, %", "answers")
    table.add_row(document.dtype, f"{full.perplexity.value:,.2f}", "", "", "")
    for row in document.rows:
        if row.quality is not None:
            table.add_row(row.scheme, *_quality(row.quality))
    return table


def _quality(quality: Quality) -> tuple[str, str, str, str]:
    ratio, equal = quality.perplexity_ratio, quality.agreement
    return (
        f"{quality.perplexity.value:,.2f}",
        f"{_number(ratio.value)} ({_range(ratio)}){'*' if quality.differs else ' '}",
        f"{100 * equal.value:.1f} ({100 * equal.low:.1f}–{100 * equal.high:.1f})",
        f"{quality.num_equal_answers}/{quality.num_answers}",
    )


def _range(estimate: Estimate) -> str:
    return f"{_number(estimate.low)}–{_number(estimate.high)}"


def _number(value: float) -> str:
    """Four decimals near one, fewer where the figure is large."""
    return f"{value:.4f}" if value < 10 else f"{value:,.1f}" if value < 10_000 else f"{value:.3g}"
