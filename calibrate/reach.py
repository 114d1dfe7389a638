"""The steps that a known workload can ask of an engine: a grid for it, and no wider."""

from __future__ import annotations

from itertools import product

from calibrate.chains import chain_points
from calibrate.grid import Axes, MixedAxes, Point
from calibrate.held_out import held_out_points
from calibrate.options import Reach

_EVERY_BATCH_TO = 8  # a batch more may cost a kernel's jump, and batches are few
_BATCHES = (12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_NEW_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96)
_LONG_ROW = 64  # of longer ones few steps are made: fewer contexts are enough
_HELD_OUT_EVERY = 2


def reach_points(reach: Reach, seed: int, *, one_row: bool, mixes: bool) -> list[Point]:
    """Every batch size, and contexts from the shortest to the longest; mixed steps where the engine ``mixes``; chains
    of decodes at every batch size; and points held out between them. ``one_row``: an engine whose tokens attend to all
    caches needs prefills over as many cached tokens as all its sequences have together."""
    prefill, decode, mixed = _axes(reach, one_row=one_row)
    longest = prefill.contexts[-1]
    points = [
        Point("prefill", 1, row, context)
        for row, context in product(prefill.rows, prefill.contexts)
        if row <= _LONG_ROW or context in (prefill.contexts[0], prefill.contexts[1])
    ]
    points += [Point("decode", row, 1, context) for row, context in product(decode.rows, decode.contexts)]
    if mixes and reach.max_batch_size > 1:
        axes = mixed.num_new_tokens, mixed.contexts, mixed.num_decodes, mixed.decode_contexts
        points += [Point("mixed", 1, new, at, False, beside, over) for new, at, beside, over in product(*axes)]
    points += chain_points(decode, seed)
    held_out = held_out_points("standard", (prefill, decode, mixed), seed)[::_HELD_OUT_EVERY]
    return points + [
        point
        for point in held_out
        if (mixes or (point.phase != "mixed" and not point.context_spread))
        and (point.row <= _LONG_ROW or point.num_context_tokens < longest)
    ]


def _axes(reach: Reach, *, one_row: bool) -> tuple[Axes, Axes, MixedAxes]:
    batches, context = reach.max_batch_size, reach.max_context
    decode_rows = {*range(1, min(batches, _EVERY_BATCH_TO) + 1), batches}
    decode_rows |= {size for size in _BATCHES if size < batches}
    together = min(reach.max_prompt_tokens + batches, reach.max_prefill_tokens)  # a prompt beside decodes
    rows = {row for row in _NEW_TOKENS if row < together} | {together, 2}
    while together < reach.max_prefill_tokens:
        together = min(2 * together, reach.max_prefill_tokens)
        rows.add(together)
    contexts = {0, context} | ({batches * context // 2} if one_row and batches > 2 else set())
    beside = sorted({1, max(1, batches // 2), max(1, batches - 1)})
    prompts = sorted({max(1, reach.max_prompt_tokens // 8), max(1, reach.max_prompt_tokens // 2)})
    decode_contexts = {1, 16, 64, context // 2, context}
    return (
        Axes(tuple(sorted(rows)), tuple(sorted(contexts))),
        Axes(tuple(sorted(decode_rows)), tuple(sorted(c for c in decode_contexts if 1 <= c <= context))),
        MixedAxes(
            tuple(sorted({*prompts, reach.max_prompt_tokens})),
            tuple(sorted({0, reach.max_chunk_context})),
            tuple(beside),
            tuple(sorted({max(1, context // 6), max(1, context // 2)})),
        ),
    )
