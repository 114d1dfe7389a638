"""The plain case of the engine as machine code: the same records, bit for bit, a hundred times as fast.

Policies ``chunked`` and ``continuous`` over the paged cache, requests that come by themselves and are never given up,
step times of a roofline: ``run.run_if_plain`` takes those runs. Everything else, and everything where numba is not
installed, goes through ``engine.Engine``, with which this agrees in every row (``tests/test_compiled.py``).
"""
