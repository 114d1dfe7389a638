"""The house as DESIGN.md section 1 draws it: who may import whom, where torch and simpy live, and what it weighs."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LONGEST_FILE = 350

# Everyone may import `errors`. A room that is not listed here does not exist yet, or should be added to the table.
CORE = {"request", "model_spec", "kv_cache", "scheduling", "step_time", "workload"}
RECORDS = {"request", "records", "step_time"}
RESULT = {"simulate", "scenario", *RECORDS}
COMMANDS = ("memory", "sweep", "knee", "capacity", "compare", "replay", "validate")
MAY_IMPORT = {
    "errors": set(),
    "request": set(),
    "model_catalogue": set(),
    "model_spec": {"model_catalogue"},
    "memory": {"model_spec", "step_time"},
    "kv_cache": {"request"},
    "scheduling": {"request", "kv_cache"},
    "speculation": {
        *{"request", "kv_cache", "model_spec", "records", "recorder", "scenario", "scheduling", "step_time"},
    },
    "scenario": {"request", "memory"},
    "step_time": {"request", "model_spec", "memory"},
    "clients": {"request"},
    "workload": {"request", "clients", "scenario"},
    "records": {"request"},
    "token_gaps": RECORDS,
    "recorder": {*RECORDS, "clients", "scheduling", "token_gaps"},
    "engine": {*CORE, "clients", "recorder"},
    "distributions": {"request"},
    "timeline": {*RECORDS, "distributions"},
    "fairness": {*RECORDS, "distributions"},
    "metrics": {*RECORDS, "distributions", "fairness", "model_spec", "timeline"},
    "draft_model": {"memory", "model_spec", "scenario", "step_time"},
    "simulated_model": {"draft_model", "memory", "model_spec", "scenario", "step_time"},
    "compiled": {*CORE, "engine", "records"},
    "assemble": {*CORE, "scenario", "simulated_model", "speculation"},
    "simulate": {
        *{*CORE, "clients", "assemble", "compiled", "engine", "metrics", "recorder", "records", "scenario"},
        "speculation",
        "simulated_model",
    },
    "report": {*RESULT, "fairness", "metrics", "speculation"},
    "manifest": {*RESULT},
    "summary": {"simulate", "manifest"},
    "trace_events": {*RESULT},
    "run_directory": {*RESULT, "manifest", "metrics", "report", "summary", "trace_events", "workload"},
    "terminal": {*RESULT, "fairness"},
    "run_command": {"manifest", "run_directory", "scenario", "simulate", "terminal"},
    "tasks": {
        *{*RESULT, "distributions", "engine", "fairness", "manifest", "metrics", "model_spec"},
        *{"timeline", "workload"},
    },
    "sweep": {*RESULT, "knee", "manifest", "report", "run_directory", "speculation", "summary", "tasks", "workload"},
    "knee": {"assemble", "manifest", "report", "scenario", "step_time", "summary", "tasks", "workload"},
    "capacity": {"knee", "report", "scenario", "tasks", "workload"},
    "compare": {"distributions", "fairness", "manifest", "report", "request", "run_directory", "summary"},
    "replay": {"clients", "distributions", "manifest", "request", "run_directory", "scenario", "summary", "workload"},
    "recorded": {*RECORDS, "distributions", "replay", "scenario", "scheduling", "workload"},
    "validate": {
        *{*RESULT, "distributions", "engine", "manifest", "metrics", "model_spec", "recorded", "report"},
        *{"run_directory", "simulated_model", "summary", "terminal", "workload"},
    },
    "vllm_flags": {"assemble", "memory", "model_spec", "scenario", "step_time"},
    "init_command": {"exit_codes", "vllm_flags"},
    "exit_codes": set(),
    "profile_command": {"exit_codes", "report", "step_time"},
    "quantize_command": {"exit_codes", "report"},
    **{f"{name}_command": {"exit_codes", "replay", name} for name in COMMANDS},
    "trace_tools": {"clients", "request", "scenario", "workload"},
    "trace_command": {"exit_codes", "trace_tools"},
    "cli": {
        *{"report", "step_time", "exit_codes", "profile_command", "quantize_command", "run_command", "scenario"},
        *(f"{name}_command" for name in (*COMMANDS, "init", "trace")),
    },
    "__main__": {"cli"},
}
PINNED_EXTRAS = ("calibrate", "cluster", "search", "fast", "test", "text")  # those that `make test` installs
ONLY_IN = {"simpy": {"engine", "simulate"}, "altair": {"report"}, "vl_convert": {"report"}, "jinja2": {"report"}}


def _files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _room(path: Path) -> str:
    return path.relative_to(ROOT / "simserve").parts[0].removesuffix(".py")


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, at the top or inside a function, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((name, node.lineno) for name in (names if node.module == "simserve" else [node.module or ""]))


def test_imports_keep_the_table():
    """No room of simserve imports a room that its line of the table does not name."""
    wrong = []
    for path in _files("simserve"):
        room = _room(path)
        if path == ROOT / "simserve" / "__init__.py":
            continue
        assert room in MAY_IMPORT, f"{room}: is in no line of the table"
        for module, line in _imports(path):
            top, _, rest = module.partition(".")
            other = rest.split(".")[0]
            is_a_room = (ROOT / "simserve" / other).is_dir() or (ROOT / "simserve" / f"{other}.py").exists()
            if top == "simserve" and rest and is_a_room and other not in {room, "errors", *MAY_IMPORT[room]}:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert wrong == []


def test_every_line_of_the_table_is_a_room():
    """The table names nothing that is gone."""
    rooms = {_room(path) for path in _files("simserve")}
    assert set(MAY_IMPORT) <= rooms
    assert set().union(*MAY_IMPORT.values()) <= rooms


def test_torch_and_transformers_are_imported_in_calibrate_alone():
    """The base install has no torch: nothing under simserve/ names it, and calibrate's options neither."""
    for path in (*_files("simserve"), ROOT / "calibrate" / "options.py", ROOT / "calibrate" / "__init__.py"):
        tops = {module.split(".")[0] for module, _ in _imports(path)}
        assert not tops & {"torch", "transformers"}, path
        if "calibrate" in tops:
            assert _room(path) in {"cli", "profile_command", "quantize_command", "validate"}, path


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_stays_in_its_room(library):
    """SimPy is the only clock and the engine its only reader; charts and pages are made in report/."""
    rooms = {_room(p) for p in _files("simserve") for module, _ in _imports(p) if module.split(".")[0] == library}
    assert rooms <= ONLY_IN[library]


def test_calibrate_knows_only_the_profile_s_side_of_simserve():
    """calibrate writes what step_time reads, and records runs of real engines; it does not reach into the engine."""
    allowed = ("simserve.step_time", "simserve.model_spec", "simserve.errors", "simserve.request", "simserve.recorded")
    allowed += ("simserve.memory.schemes", "simserve.exit_codes")  # names of weights; one command of calibrate's own
    for path in _files("calibrate"):
        for module, line in _imports(path):
            if module.startswith("simserve."):
                assert module.startswith(allowed) or module == "simserve.__version__", f"{path.name}:{line}: {module}"


def test_files_are_small():
    """One job each: no file is longer than 350 lines."""
    files = _files("simserve") + _files("calibrate")
    long = {p.name: n for p in files if (n := len(p.read_text().splitlines())) > LONGEST_FILE}
    assert long == {}


def test_top_level_is_the_agreed_one():
    """The five rooms at the top and the script of the continuous build."""
    for name in ("pyproject.toml", "simserve", "calibrate", "scenarios", "tests", "reports", "Makefile", ".ci/run"):
        assert (ROOT / name).exists(), name


def test_constraints_pin_every_direct_dependency():
    """constraints.txt holds an exact version for all that pyproject.toml asks for, and for nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(text for name in PINNED_EXTRAS for text in extras[name])]
    names = {re.match(r"[\w-]+", text)[0].lower() for text in asked}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert {name.lower() for name in pins} == names
    assert pins["torch"] == "2.13.0"


def _run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


def test_run_imports_no_torch_and_takes_under_a_second_and_a_half():
    """All that `simserve run` imports before it simulates, in a fresh process: 1.5 s of CPU at most, best of three."""
    code = (
        "import sys, time; began = time.process_time(); import simserve.cli, simserve.run_command, simserve.report;"
        "print(time.process_time() - began, *sys.modules)"
    )
    best = min(((float((words := _run(code))[0]), words[1:]) for _ in range(3)), key=lambda pair: pair[0])
    assert best[0] < 1.5
    assert not {"torch", "transformers", "calibrate"} & set(best[1])


def test_help_imports_nothing_heavy():
    """`simserve --help` answers at once: no pandas, SciPy, Altair or SimPy for it."""
    loaded = set(_run("import sys, simserve.cli; print(*sys.modules)"))
    assert not {"pandas", "numpy", "scipy", "altair", "simpy", "pyarrow", "torch"} & loaded
