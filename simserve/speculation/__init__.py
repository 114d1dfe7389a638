"""Speculative decoding: a draft proposes, the target verifies several tokens in one step (Leviathan et al., ICML 2023).

A decode mode of the policies ``continuous`` and ``chunked``. What it means, rule by rule (γ = ``draft_tokens``,
α = ``acceptance``):

**A pass.** One step is one pass for all sequences that decode in it: γ draft steps, then one step of the target that
computes γ + 1 tokens per decode, its last known token and γ drafts, over the sequence's context. The batch says so by
``tokens_per_decode = γ + 1``. A step without decodes is a plain step. Every step is a decision of its own: the clock is
anchored anew at each (step k of a run ends at ``end of step k - 1 + round(1e9 · seconds)``), and nothing is
fast-forwarded, because who accepts what differs from pass to pass (``steady_steps`` is 1).

**Acceptance.** Output tokens of a request are numbered from 0; number 0 comes from its prefill. Let ``u(seed, request,
n)`` be uniform on [0, 1) (``acceptance.uniform``: counter-based, so neither policy nor service order nor preemption
changes it). In a pass that begins with ``g`` tokens generated, draft i (from 0) agrees with the target if
``u(seed, request, g + i) < α_i``; the leading run of drafts that agree, ``a`` of them, is accepted, and the target adds
one token of its own. α_i is conditional: given that drafts 0 … i - 1 were accepted. With one α the number of tokens per
pass has mean (1 - α^(γ+1)) / (1 - α). As agreement belongs to the place in the text and not to the pass, variants with
other α, γ or policies share it: a higher α or a larger γ never needs more passes for the same request.

**Emission.** ``e = min(a + 1, what the answer still lacks)`` tokens come out, all at the end of the step: of their
inter-token gaps the first is the time since the token before, the others are 0. As in vLLM, only the engine's stop
check knows where an answer ends, so drafts beyond its end are made, verified and thrown away. Everything else is as in
a plain decode: the prefill emits one token, a sequence that is preempted recomputes its known tokens and that step
emits one, without a pass.

**Cache.** A sequence with P prompt tokens, g generated and P + g - 1 computed needs room for ``min(P + g - 1 + γ + 1,
P + declared maximum, max_model_len)`` tokens before a pass: drafts that no answer can reach are verified, but written
nowhere (vLLM caps its slots at ``max_model_len`` likewise). After it ``num_computed_tokens`` has grown by e; what the
other γ + 1 - e tokens wrote is *rolled back*: blocks beyond the computed tokens are free again at the end of the step,
before anybody leaves. vLLM keeps those blocks in the request's table instead and fills them in the next pass; as its
running requests take their blocks first, that differs only where a queue is served before the decodes (``continuous``).
vLLM also reserves room for the draft model's own lookahead, another γ slots; here the cache is the target's alone.
A contiguous range needs nothing more, for drafts beyond it are written nowhere.

**Who is refused, who is preempted.** Paged: a request can be held if ``min(P + outputs + γ, P + declared maximum,
max_model_len)`` tokens fit (plus watermark), so that a sequence alone always runs: no livelock. Admission is as
without speculation: all known tokens fit and the watermark stays free. Before a pass, while the room that all decodes
(and the unfinished prefill, under ``chunked``) lack exceeds the free blocks, the last admitted is preempted. At that
moment nobody holds more than what is computed. Preemption recomputes; there is no swapping with speculation.

**Budget.** A decode takes γ + 1 of ``max_num_batched_tokens``, which must be at least ``max_num_seqs`` · (γ + 1);
prefills get the rest.

**Tokens** (INV-5). A pass computes γ + 1 tokens per decode, of which e stay: *rejected* are the γ + 1 - e others.
computed = prompts + emitted - requests that emitted + recomputed - prefix hits + rejected.
``accepted_tokens`` counts a, also what lies beyond an answer's end, as vLLM's counter does: ``acceptance_rate`` =
accepted / drafted is then free of bias, while ``tokens_per_pass`` = emitted by passes / passes has what was cut off.

**Time.** ``step_time.PassTime``: the target's step of the whole batch, plus the draft's: γ decode steps of the same
sequences whose contexts grow by one from step to step; the first also computes the chunks of the batch, since a draft
needs the prompts as well. A draft step costs a fraction c of the target's, or what the draft's own profile or roofline
says. Not modelled: the second token that a draft computes in its first step after all its drafts were accepted.

**Memory.** A cache of ``num_blocks`` or ``memory`` bytes is the target's. Where a device's memory is shared out
(``device_memory``), the weights of a draft come off too, and each token takes the draft's keys and values beside the
target's: of a draft with a roofline on the same hardware, or with a profile; of a mere cost nothing is known, and the
result says that it was not counted. A draft is counted once, however many devices share the target.

**Not with it**: policies static (rows of one tensor would have to advance by different numbers of tokens) and
transformers (there it serves one sequence at a time), asynchronous scheduling, swapping.
"""
