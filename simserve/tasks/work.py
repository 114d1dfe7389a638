"""What one run of a study pushed through its model: totals of the whole run, warm-up included."""

from __future__ import annotations

from simserve.metrics import model_macs, speculation
from simserve.model_spec import ModelSpec
from simserve.records import Records
from simserve.timeline import SpanIntegral

WORK = ("computed_tokens", "model_macs", "tokens_per_pass", "acceptance_rate")


def work(records: Records, model: ModelSpec) -> dict[str, float | int | None]:
    """Tokens and multiply-accumulates as ``summary.json`` has them; those of passes are null without speculation."""
    passes = speculation(records) if records.draft_tokens else {}
    return {
        "computed_tokens": records.num_computed_tokens,
        "model_macs": model_macs(records, SpanIntegral(records.spans.columns()), model),
        "tokens_per_pass": passes.get("tokens_per_pass"),
        "acceptance_rate": passes.get("acceptance_rate"),
    }
