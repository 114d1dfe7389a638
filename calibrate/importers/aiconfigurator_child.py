"""Runs inside the interpreter that has AIConfigurator: composes step times from its database, JSON in, JSON out.

Imports nothing of ours, because that environment may hold nothing of ours. One request on stdin, one answer on stdout:

    {"config": a config.json, "system": …, "backend": …, "backend_version": … or null, "tensor_parallel": …,
     "gemm": quantization mode, "attention": mode of attention and cache,
     "prefill": [[new, cached], …], "decode": [[batch, cached], …]}
    -> {"version": …, "backend_version": …, "memory_bytes": of one device,
        "prefill": [{"silicon": ms, "mixed": ms, "empirical": ms} or {"error": …}, …], "decode": the same}
    or {"error": "one line"}

The keys of a step are where AIConfigurator says that its operators' times come from; their sum is the step.
"""

# ruff: noqa: ANN401 - what AIConfigurator passes around has no stable type of its own

import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def words(problem: Exception) -> str:
    """An exception in one line."""
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:300]


def compose(engine: Any, phase: str, row: int, context: int) -> dict[str, Any]:
    """One step: milliseconds by source. A decode of ``osl=2`` is the single step after the prompt; ``isl`` of a prefill
    counts its cached prefix too."""
    try:
        if phase == "prefill":
            operators, _ = engine.run_static_per_op(
                batch_size=1, isl=row + context, osl=2, prefix=context, mode="static_ctx"
            )
        else:
            _, operators = engine.run_static_per_op(batch_size=row, isl=context, osl=2, mode="static_gen")
    except Exception as problem:  # a shape that the database does not reach is left out, not the end of the import
        return {"error": words(problem)}
    step: dict[str, Any] = {}
    for _, milliseconds, _, source in operators:
        step[source] = step.get(source, 0.0) + milliseconds
    return step


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """All steps that were asked for."""
    from aiconfigurator_core.sdk import perf_database
    from aiconfigurator_core.sdk.engine import EngineHandle

    system, backend = asked["system"], asked["backend"]
    known = perf_database.get_supported_databases()
    if backend not in known.get(system, {}):
        pairs = (f"{name} ({', '.join(sorted(backends))})" for name, backends in sorted(known.items()))
        return {"error": f"system: its database has {', '.join(pairs)} (got {system!r} under {backend!r})"}
    version = asked["backend_version"] or perf_database.get_latest_database_version(system, backend)
    database = perf_database.get_database(system, backend, version)
    if database is None:
        return {"error": f"backend_version: must be one of {', '.join(known[system][backend])} (got {version!r})"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(asked["config"]))
        engine = EngineHandle.compile(
            folder,
            system,
            backend,
            backend_version=database.version,
            tp_size=asked["tensor_parallel"],
            gemm_quant_mode=asked["gemm"],
            kvcache_quant_mode=asked["attention"],
            fmha_quant_mode=asked["attention"],
        )
    return {
        "version": importlib.metadata.version("aiconfigurator-core"),
        "backend_version": database.version,
        "memory_bytes": database.system_spec["gpu"]["mem_capacity"],
        **{phase: [compose(engine, phase, *shape) for shape in asked[phase]] for phase in ("prefill", "decode")},
    }


def main() -> None:
    """Answer the one request."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed goes to stderr, out of the answer's way
    os.environ["HF_HUB_OFFLINE"] = "1"
    asked = json.load(sys.stdin)
    try:
        found = answer(asked)
    except ImportError as problem:
        found = {"missing": words(problem)}
    except Exception as problem:  # the parent says it in a sentence
        found = {"error": words(problem)}
    print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
