"""Whole steps of real serving engines, measured like bare forwards: ``simserve calibrate --engine transformers|vllm``.

A bare forward is what the model costs; a step of an engine is what serving costs: taking in requests, scheduling, block
tables, masks and index tensors, the forward over a paged cache, sampling, and bookkeeping. At 25 million parameters on
a CPU the difference is a tenth of a small step and most of a large one.

How it fits together: ``grid`` and ``held_out`` name points, ``engine.shape_of`` turns a point into sequences (new
tokens, cached tokens), an ``Engine`` is brought to where its next step is exactly those, and ``engine.EngineSteps``
hands that step to the same ``Measurer`` that times bare forwards: same order of visits, same handling of busy
neighbours, same samples, fit, held-out error and file. After every step the engine's own account of what it computed is
compared with what was asked; a step of another shape ends the calibration.

Adding an engine
----------------
1. Write a class with the methods of ``engine.Engine``:

   - ``start(shapes)``: build it with a cache and limits for the largest of ``shapes`` (``EngineSize.of`` tells them),
     greedy, endless (no end-of-sequence), without prefix sharing; return ``EngineFacts``, with the bytes per token
     *counted in its cache tensors*;
   - ``prepare(shape, num_steps)``: drop what it was serving, and bring it to where the next step is ``shape`` and so
     many can be taken one after the other, as a group that decodes on and on takes them. Contexts may be
     declared instead of computed (blocks allocated, tokens marked as computed), which takes no time; decodes must have
     been running before the timed step, so that their admission is not timed again;
   - ``step()``: exactly one step of the engine's own loop, timed inside the process where it runs;
   - ``computed()``: (new, cached) tokens of each sequence of that step *by the engine's own account*: read them from
     what its scheduler decided, never echo ``shape``;
   - ``read_machine()``: ``contention.read_machine()``, plus the CPU seconds of its processes;
   - ``extra_bytes_per_token()`` and ``stop()``.

2. An engine that needs an environment of its own runs in a child process: ``child.Child`` speaks JSON lines, one object
   in, one out; ``vllm_child.py`` is such a child, imports nothing of ours and keeps stdout for the protocol.

3. Add a function that makes it and a line to ``choose.ENGINES``.

4. Test it as ``tests/test_calibrate_engines.py`` does: for decodes, prompts, chunks over a context, packed prompts,
   unequal contexts and a chunk beside decodes, what the engine computed, seen from below (the lengths that attention
   was given), is what the point names.

Traps: an engine that pipelines (asynchronous scheduling, more than one process) has no step that one clock can see:
turn that off and say so. A sequence that reaches its greatest length within the timed step ends in it.
"""
