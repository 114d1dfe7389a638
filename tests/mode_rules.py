"""One small case per rule of running without a cache and of speculation, worked out by hand: times in ms.

Without a cache a step takes 1 ms per token that it computes; with speculation each takes 10 ms. An answer of N tokens
after a prompt of P takes N·P + N·(N − 1)/2 tokens without a cache; with one, P + N − 1, and the drafts that failed.
"""

from __future__ import annotations

from dataclasses import replace

from tests.client_rules import Outcome, Rule, asks, plan, retry
from tests.reference_types import Settings, Speculation
from tests.step_times import ConstantStepTime, TokenStepTime
from tests.strategies import MS, Case, table_of

NONE = Settings("continuous", "none", 2, 100, 100, num_blocks=1)
STATIC = replace(NONE, policy="static")
DRAFTS = Settings("continuous", "paged", 2, 100, 100, num_blocks=1000, speculation=Speculation((1.0, 1.0)))
CHUNKED = replace(DRAFTS, policy="chunked")
HALF = replace(DRAFTS, speculation=Speculation((1.0, 0.0)))  # the first draft is always right, the second never
PER_TOKEN, PER_STEP = TokenStepTime(0.001), ConstantStepTime(0.01)


def again(arrivals, prompts, outputs, settings=NONE, declared=None, **clients) -> Case:
    table = table_of([ms * MS for ms in arrivals], prompts, outputs, declared)
    return Case(table, settings, PER_TOKEN, plan(**clients))


def drafts(settings, arrivals, prompts, outputs, declared=None, **clients) -> Case:
    table = table_of([ms * MS for ms in arrivals], prompts, outputs, declared)
    return Case(table, settings, PER_STEP, plan(**clients))


def of_passes(passes: int, accepted: int, rejected: int, computed: int) -> tuple[tuple[str, int], ...]:
    names = "num_passes", "num_accepted_tokens", "num_rejected_tokens", "num_computed_tokens"
    return tuple(zip(names, (passes, accepted, rejected, computed), strict=True))


WITHOUT_CACHE = {
    # 3 + 4 + 5 + 6, of which 6 would do with a cache.
    "everything again for every token": Rule(
        again([0], [3], [4]),
        (Outcome("finished", 18, 4, 18),),
        (("num_steps", 4), ("num_recomputed_tokens", 12)),
    ),
    # 3, then 4 (in which the second comes), then 5 + 2, then 6 + 3.
    "who comes computes beside the others from the next step on": Rule(
        again([0, 5], [3, 2], [4, 2]),
        (Outcome("finished", 23, 4, 18), Outcome("finished", 23, 2, 5, scheduled=7)),
        (("num_steps", 4),),
    ),
    # 2 + 10 − 1 and 3 + 3 − 1 tokens at most: 16 in the largest step.
    "room for the largest step of all together": Rule(
        again([0, 0], [2, 3], [2, 3], replace(NONE, max_num_batched_tokens=16), declared=[10, 3]),
        (Outcome("finished", 12, 2, 5), Outcome("finished", 17, 3, 12, scheduled=0)),
    ),
    "no room for it: one after the other": Rule(
        again([0, 0], [2, 3], [2, 3], replace(NONE, max_num_batched_tokens=15), declared=[10, 3]),
        (Outcome("finished", 5, 2, 5), Outcome("finished", 17, 3, 12, scheduled=5)),
    ),
    "what is too large alone is refused": Rule(
        again([0, 0], [10, 10], [3, 3], replace(NONE, max_num_batched_tokens=12), declared=[4, 3]),
        (Outcome("rejected", 0), Outcome("finished", 33, 3, 33, scheduled=0)),
    ),
    # Two rows of 3, 4 and 5: of 24 tokens 2 + 12 are anybody's.
    "static rows are padded, and stay": Rule(
        again([0, 0], [2, 3], [1, 3], STATIC),
        (Outcome("finished", 24, 1, 2), Outcome("finished", 24, 3, 12)),
        (("num_padding_tokens", 10), ("num_steps", 3)),
    ),
    "a static row stays when its client leaves": Rule(
        again([0, 0], [2, 3], [3, 3], STATIC, cancel=[7, None]),
        (Outcome("cancelled", 7, 2, 5), Outcome("finished", 24, 3, 12)),
        (("num_padding_tokens", 7),),
    ),
    "who leaves computes to the end of the step, for nobody": Rule(
        again([0, 0], [3, 2], [4, 2], replace(NONE, max_num_seqs=1), cancel=[5, None]),
        (Outcome("cancelled", 5, 2, 7), Outcome("finished", 12, 2, 5, scheduled=7)),
    ),
    # Steps of 3 and 4 ms, left at 4, back at 5; scheduled at 7, left at 9.
    "the work of an attempt given up is counted": Rule(
        again([0], [3], [2], timeout=4, retry=retry(2, 1)),
        (Outcome("timed_out", 9, 1, 10, 2, 1, 2, scheduled=7),),
        (("num_timed_out_attempts", 2),),
    ),
}

WITH_DRAFTS = {
    # 1, then 3, 3 and the last one of 3.
    "all drafts right": Rule(
        Case(asks([0], [8]), DRAFTS, PER_STEP), (Outcome("finished", 40, 8, 11),), of_passes(3, 6, 2, 13)
    ),
    "all drafts right, chunked": Rule(
        Case(asks([0], [8]), CHUNKED, PER_STEP), (Outcome("finished", 40, 8, 11),), of_passes(3, 6, 2, 13)
    ),
    # 1, then 2, 2 and the last one of 2.
    "the first draft of each pass right": Rule(
        Case(asks([0], [6]), HALF, PER_STEP), (Outcome("finished", 40, 6, 9),), of_passes(3, 3, 4, 13)
    ),
    "no draft right": Rule(
        Case(asks([0], [3]), replace(DRAFTS, speculation=Speculation((0.0, 1.0))), PER_STEP),
        (Outcome("finished", 30, 3, 6),),
        of_passes(2, 0, 4, 10),
    ),
    "continuous: a prefill holds up the passes": Rule(
        Case(asks([0, 15], [8, 1]), DRAFTS, PER_STEP),
        (Outcome("finished", 50, 8, 11), Outcome("finished", 30, 1, 4, scheduled=20)),
        of_passes(3, 6, 2, 17),
    ),
    "chunked: a prefill goes beside a pass": Rule(
        Case(asks([0, 15], [8, 1]), CHUNKED, PER_STEP),
        (Outcome("finished", 40, 8, 11), Outcome("finished", 30, 1, 4, scheduled=20)),
        of_passes(3, 6, 2, 17),
    ),
    # Of 9 tokens a pass takes 3: a prompt of 10 comes as 6 and 4.
    "chunked: a pass takes its drafts from the budget": Rule(
        drafts(replace(CHUNKED, max_num_batched_tokens=9), [0, 5], [4, 10], [8, 1]),
        (Outcome("finished", 40, 8, 11), Outcome("finished", 30, 1, 10, scheduled=10)),
        (("num_steps", 4),),
    ),
    # Both hold 4 of 12 blocks and need 5 more for their drafts: the second computes its 5 tokens again, which gives
    # its second, and a pass its last two.
    "the last admitted is preempted for drafts": Rule(
        drafts(
            replace(DRAFTS, num_blocks=12, speculation=Speculation((1.0,) * 4)), [0, 0], [4, 4], [4, 4], declared=[9, 9]
        ),
        (Outcome("finished", 20, 4, 7), Outcome("finished", 40, 4, 11)),
        (*of_passes(2, 8, 5, 23), ("num_preemptions", 1), ("num_recomputed_tokens", 4)),
    ),
    # Of 9 blocks the first pass takes 6, of which 3 hold something when it ends: a prompt of 6 fits then.
    "what was rejected is free for the queue": Rule(
        drafts(
            replace(DRAFTS, num_blocks=9, speculation=Speculation((0.0,) * 4)), [0, 15], [2, 6], [4, 1], declared=[4, 1]
        ),
        (Outcome("finished", 50, 4, 5), Outcome("finished", 30, 1, 6, scheduled=20)),
        (("num_preemptions", 0),),
    ),
    "who leaves has the tokens of the pass under way, for nobody": Rule(
        Case(asks([0], [20]), DRAFTS, PER_STEP, plan(cancel=[15])),
        (Outcome("cancelled", 15, 4, 7),),
        of_passes(1, 2, 0, 7),
    ),
    # 1, 3 and 5 tokens; left at 25, back at 30, and the same drafts are right again; left at 55.
    "a second attempt has the same luck": Rule(
        Case(asks([0], [6]), HALF, PER_STEP, plan(timeout=25, retry=retry(2, 5))),
        (Outcome("timed_out", 55, 5, 16, 2, 5, 5, scheduled=30),),
        of_passes(4, 4, 4, 20),
    ),
}

RULES = {**WITHOUT_CACHE, **WITH_DRAFTS}
