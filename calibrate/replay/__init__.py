"""Real serving engines on a given list of requests, step by step, in this process or in a child of another Python.

An engine is driven one step of its own loop at a time. Each step's composition is read from what its scheduler decided,
each step's time from the clocks of the process that took it, and a request is handed over when its time has come on the
clock that these steps add up to, or before a given step. So what happens between two steps (writing down, pipes) takes
no time, a busy neighbour can be told apart on the CPU clock, and a run with arrivals by step is the same every time.

``ask`` says what is asked for, ``driver`` is the loop, ``ledger`` writes down; ``continuous`` and ``static`` are
transformers' two ways to serve, ``vllm_replay`` is vLLM's. The result is a ``simserve.recorded.steps.EngineRun``.
"""
