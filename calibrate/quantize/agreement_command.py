"""``simserve agreement``: how many of a draft's tokens its target accepts, position by position, on a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from calibrate.errors import CalibrationError
from calibrate.model import ModelSource, find_model
from calibrate.partial import require_writable, write_atomically
from calibrate.quantize.agreement import Passes, by_position, measure_passes
from calibrate.quantize.command import require_positive, steps
from calibrate.quantize.document import software
from calibrate.quantize.intervals import bootstrap, wilson
from calibrate.quantize.options import AgreementOptions
from calibrate.quantize.show import show_agreement
from calibrate.quantize.subject import Tokens, build, tokenize
from simserve.step_time.profile_schema import content_digest
from simserve.step_time.quality_schema import AGREEMENT, DraftAgreement


def measure_agreement(options: AgreementOptions, console: Console | None = None) -> Path:
    """Write the acceptance of every position, for ``acceptance: {measured: FILE}`` of a scenario; returns the path.

    Raises ``ModelError``, ``OutputError`` or ``CalibrationError`` before anything is computed."""
    console = console or Console()
    target, draft = _check(options)
    path = options.out or Path(f"{target.spec.name}-{draft.spec.name}{AGREEMENT}")
    require_writable(path)
    torch.set_num_threads(options.threads)
    tokens = tokenize(target, options.text)
    if not torch.equal(tokens.ids, tokenize(draft, options.text).ids):
        raise CalibrationError(
            f"draft: must have its target's tokenizer (got other tokens of {options.text.name} in {options.draft})"
        )
    prompts = tokens.windows(options.answers, options.prompt_tokens)
    with steps(console, 2) as advance:
        advance("building both models")
        models = [build(source, options.dtype, options.seed) for source in (target, draft)]
        advance("answers of the target, and what the draft would say")
        passes = measure_passes(models[0], models[1], prompts, (options.answer_tokens, options.draft_tokens))
    document = assemble(options, (target, draft), tokens, passes)
    write_atomically(path, json.dumps(document.model_dump(mode="json"), indent=1) + "\n")
    show_agreement(document, console)
    console.print(f"wrote {path}")
    return path


def assemble(
    options: AgreementOptions, sources: tuple[ModelSource, ModelSource], tokens: Tokens, passes: list[Passes]
) -> DraftAgreement:
    """The document, digest and all."""
    target, draft = sources
    tried, accepted = by_position(passes, options.draft_tokens)
    rates = tuple(wilson(yes, all_) for yes, all_ in zip(accepted, tried, strict=True))
    counts = [len(answer.accepted) for answer in passes]
    emitted = [sum(answer.accepted) + len(answer.accepted) for answer in passes]
    made: dict[str, Any] = {
        "schema_version": 1,
        "kind": "simserve draft agreement",
        "name": f"{target.spec.name}-{draft.spec.name}",
        "target": options.target,
        "draft": options.draft,
        "draft_tokens": options.draft_tokens,
        "acceptance": tuple(rate.value for rate in rates),
        "intervals": rates,
        "tried": tried,
        "accepted": accepted,
        "agreement": wilson(sum(accepted), sum(tried)),
        # Of all passes together; answers are drawn again whole, because their passes resemble one another.
        "tokens_per_pass": bootstrap([emitted, counts], lambda a, b: a / b, options.seed),
        "num_passes": sum(counts),
        "num_answers": options.answers,
        "num_answer_tokens": options.answer_tokens,
        "draft_parameters": draft.spec.num_parameters,
        "target_parameters": target.spec.num_parameters,
        "text": tokens.used,
        "seed": options.seed,
        "software": software(options.command),
    }
    document = DraftAgreement(**made, digest="")
    return document.model_copy(update={"digest": content_digest(document.model_dump(mode="json"))})


def _check(options: AgreementOptions) -> tuple[ModelSource, ModelSource]:
    require_positive(options, ("draft_tokens", "answers", "prompt_tokens", "answer_tokens", "threads"))
    if options.answer_tokens < options.draft_tokens:
        raise CalibrationError(
            f"answer_tokens: must be ≥ draft_tokens {options.draft_tokens} (got {options.answer_tokens})"
        )
    target, draft = find_model(options.target), find_model(options.draft)
    for role, source in (("target", target), ("draft", draft)):
        if not source.has_weights:
            raise CalibrationError(
                f"{role}: must be a folder with trained weights (got {source.spec.name} with random ones, which agree "
                "on nothing); python -m calibrate.train makes both"
            )
    return target, draft
