"""Where things stand in the arrays of a ``World``: names for columns, which compiled code reads by number."""

from __future__ import annotations

# counters: limits
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, BLOCK_SIZE, WATERMARK_BLOCKS, NUM_USABLE_BLOCKS, IS_CHUNKED = range(6)
# the clock, and clients: the first request that has not arrived, those that wait and never ran, those preempted
NOW, NUM_REQUESTS, NEXT_ROW, FRESH_HEAD, NUM_FRESH, NUM_BACK = range(6, 12)
# pool, and cohort
NUM_RUNNING, NUM_ADMISSIONS, OTHER_TOKENS, FREE_BLOCKS = range(12, 16)
CLOCK, NUM_DECODING, CONTEXT_TOKENS, COHORT_LAST, GROWTH_CLOCK = range(16, 21)
# decision: the unfinished prefill of a chunked policy; a preemption made room that the queue was not offered yet;
# decodes and their context at the first step, 0 in a step of prefills alone
PARTIAL, STANDS, IS_NEW, PASSED_OVER, NUM_PREFILLS, NUM_ADMITTED, NUM_PREEMPTED = range(21, 28)
NUM_DECODES, DECODE_CONTEXT = range(28, 30)
# stretch, and finishes to come
ANCHOR, STEP, NUM_RAMPS, NUM_FINISHES = range(30, 34)
# gaps
MAIN_NS, NUM_MAIN, NUM_JOINED, ITL_SUM_NS = range(34, 38)
# rows
SPAN_IS_OPEN, NUM_SPANS, NUM_OCCUPANCY, NUM_FREE_SLOTS = range(38, 42)
# totals
NUM_ENDED, NUM_STEPS, NUM_COMPUTED_TOKENS, NUM_PREEMPTIONS, NUM_RECOMPUTED_TOKENS = range(42, 47)
NUM_LOOKED_UP_TOKENS, NUM_ATTENTION_PAIRS, NUM_COUNTERS = range(47, 50)

# costs: ``RooflineStepTime.costs``, in its order, and the longest gap
TOKEN_S, ROW_S, WEIGHTS_S, PAIR_S, CACHED_S, DECODE_PAIR_S, TOKEN_LINK_S, STEP_S, ITL_MAX_S, NUM_COSTS = range(10)

# requests: what was asked, and progress, settled as in ``Sequence``
ARRIVAL_NS, NUM_PROMPT, NUM_OUTPUT, IS_REFUSED, COMPUTED, GENERATED, PREEMPTIONS, RECOMPUTED = range(8)
# blocks are those held while it does not decode; before and after are neighbours in the cohort, by admission
JOINED_CLOCK, JOINED_GROWTH, ADMISSION, BLOCKS, BEFORE, AFTER = range(8, 14)
# the last token before it was preempted; its place among those that joined since the last decode step
OPEN_GAP_NS, JOINED_AT = range(14, 16)
FIRST_SCHEDULED_NS, FIRST_TOKEN_NS, LAST_TOKEN_NS, END_NS = range(16, 20)
SLOT, ADMITTED_NS, DECODING_NS, NUM_REQUEST_COLUMNS = range(20, 24)

FINISH_CLOCK, FINISH_ADMISSION, FINISH_ID, FINISH_JOINED = range(4)
PREFILL_ID, PREFILL_TOKENS, PREFILL_CONTEXT = range(3)
JOINED_ID, JOINED_LAST_NS = range(2)
RAMP_START, RAMP_STEPS = range(2)
RAMP_FIRST_S, RAMP_SLOPE_S, RAMP_SUM_S = range(3)

# ``SpanRecords.COLUMNS``
SPAN_BEGIN_NS, SPAN_END_NS, SPAN_NUM_STEPS, SPAN_NUM_SEQS, SPAN_NUM_DECODES, SPAN_NUM_PREFILL_TOKENS = range(6)
SPAN_NUM_EMITTED_TOKENS, SPAN_NUM_FINISHED_HELD, SPAN_NUM_RUNNING_BEGIN = range(6, 9)
SPAN_NUM_WAITING_BEGIN, SPAN_NUM_WAITING_END, SPAN_KV_USED_BEGIN, SPAN_KV_USED_END = range(9, 13)
SPAN_KV_RESERVED_UNUSED_BEGIN, SPAN_KV_RESERVED_UNUSED_END, SPAN_KV_INTERNAL_BEGIN, SPAN_KV_INTERNAL_END = range(13, 17)
# ``OccupancyRecords.COLUMNS``
HELD_REQUEST_ID, HELD_SLOT, HELD_ADMITTED_NS, HELD_DECODING_NS, HELD_IDLE_NS, HELD_RELEASED_NS = range(6)
