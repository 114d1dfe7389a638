"""``simserve knee`` and ``simserve capacity`` as commands: folders, tables, resuming, a sentence per mistake."""

import json

import pytest
import typer
from typer.testing import CliRunner

from simserve import capacity_command, knee_command
from simserve.capacity.command import _tenants
from simserve.scenario import parse_scenario
from simserve.tasks.runner import Runner
from tests.scenario_builders import small, write

app = typer.Typer()
app.command(epilog=knee_command.EPILOG)(knee_command.knee)
app.command(epilog=capacity_command.EPILOG)(capacity_command.capacity)
FILES = {"points.jsonl", "manifest.json"}


@pytest.fixture
def scenario(tmp_path):
    """Two variants with few and more slots; 120 requests, so that a run takes milliseconds."""
    data = small(
        step_time={"roofline": "laptop-cpu", "dtype": "fp32"},
        workload__num_requests=120,
        slo={"ttft_s": 20.0},
        variants={"two": {"engine": {"max_num_seqs": 2}}, "four": {}},
    )
    return write(tmp_path, data)


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exit_code != code:
        raise AssertionError(f"exit {done.exit_code}: {done.output}") from done.exception
    return done


def knee(scenario, out, *more, **kwargs):
    return run("knee", scenario, "--out", out, "--workers", 1, "--replications", 2, "--loads", 5, *more, **kwargs)


def capacity(scenario, out, *more, **kwargs):
    common = ("--workers", 1, "--replications", 2, "--max-replications", 2)
    return run("capacity", scenario, "--out", out, *common, *more, **kwargs)


def test_knee_writes_a_folder_and_prints_a_table(scenario, tmp_path):
    """Document, page, manifest and points; a line per variant; the badge of a roofline."""
    done = knee(scenario, tmp_path / "k")
    assert {path.name for path in (tmp_path / "k").iterdir()} == FILES | {"knee.json", "knee.html"}
    document = json.loads((tmp_path / "k" / "knee.json").read_text())
    assert list(document["variants"]) == ["two", "four"]
    assert document["variants"]["two"]["saturation"]["value"] < document["variants"]["four"]["saturation"]["value"]
    manifest = json.loads((tmp_path / "k" / "manifest.json").read_text())
    assert manifest["kind"] == "simserve knee"
    assert "two" in done.stdout and "saturation" in done.stdout and "not calibrated" in done.stdout
    assert "knee.html" in done.stdout


def test_capacity_writes_a_folder_and_prints_a_table(scenario, tmp_path):
    """Rows from the cheapest; what was asked for as columns; the scenario's own slo, and that it is used."""
    done = capacity(scenario, tmp_path / "c", "--price", 2, "--target-rate", 3)
    assert {path.name for path in (tmp_path / "c").iterdir()} == FILES | {"capacity.json", "capacity.html"}
    document = json.loads((tmp_path / "c" / "capacity.json").read_text())
    assert [row["variant"] for row in document["rows"]] == ["four", "two"]
    assert document["slos"] == [{"metric": "ttft_s.p99", "limit": 20.0, "text": "ttft_p99=20s"}]
    assert any("the scenario's own" in note for note in document["notes"])
    assert all(row["replicas"]["value"] >= 1 for row in document["rows"])
    assert "replicas" in done.stdout and "cost/hour" in done.stdout and "the scenario's own" in done.stdout


def test_the_same_command_simulates_nothing_again_and_writes_the_same_bytes(scenario, tmp_path, monkeypatch):
    """A rerun resumes from points.jsonl: all of it is there."""
    capacity(scenario, tmp_path / "c")
    before = {name: (tmp_path / "c" / name).read_bytes() for name in ("capacity.json", "points.jsonl")}
    counts = []
    leave = Runner.__exit__

    def counting(self, *args):
        counts.append(self.num_run)
        return leave(self, *args)

    monkeypatch.setattr(Runner, "__exit__", counting)
    capacity(scenario, tmp_path / "c")
    assert counts == [0]
    assert {name: (tmp_path / "c" / name).read_bytes() for name in before} == before


def test_json_prints_the_document(scenario, tmp_path):
    """And nothing else on standard output, for jq."""
    for command in (knee, capacity):
        out = tmp_path / command.__name__
        done = command(scenario, out, "--json")
        assert json.loads(done.stdout) == json.loads((out / f"{command.__name__}.json").read_text())


def test_quiet_prints_nothing(scenario, tmp_path):
    """Only errors would be."""
    assert knee(scenario, tmp_path / "k", "--quiet").output == ""


def test_settings_become_rows(scenario, tmp_path):
    """A table over settings × variants."""
    capacity(scenario, tmp_path / "c", "--over", "engine.kv_cache.num_blocks=8,64")
    rows = json.loads((tmp_path / "c" / "capacity.json").read_text())["rows"]
    assert {(row["variant"], row["settings"]["engine.kv_cache.num_blocks"]) for row in rows} == {
        (variant, blocks) for variant in ("two", "four") for blocks in (8, 64)
    }


def test_a_search_keeps_its_storage_in_the_folder(scenario, tmp_path):
    """And the folder is still one that the same command may write to."""
    words = ("--search", 2, "--over", "engine.kv_cache.num_blocks=8:64:4")
    capacity(scenario, tmp_path / "c", *words)
    assert (tmp_path / "c" / "search.db").is_file()
    first = (tmp_path / "c" / "capacity.json").read_bytes()
    capacity(scenario, tmp_path / "c", *words)
    assert (tmp_path / "c" / "capacity.json").read_bytes() == first


def test_a_trace_s_column_makes_tenants_too(tmp_path):
    """With limits of their own for some, and with the scenario's alone; a trace of nobody's has none."""
    head, rows = "arrival_s,num_prompt_tokens,num_output_tokens", "0,1,1{a}\n1,1,1{b}\n"
    (tmp_path / "t.csv").write_text(f"{head},tenant\n" + rows.format(a=",a", b=",b"))
    (tmp_path / "nobody.csv").write_text(f"{head}\n" + rows.format(a="", b=""))

    def limits(**workload):
        found = _tenants(parse_scenario(small(workload=workload, slo={"ttft_s": 9.0}), "s", tmp_path))
        return [(each.ttft_s, each.e2e_s) for each in found]

    assert limits(trace="t.csv", tenant_slos={"b": {"e2e_s": 2.0}}) == [(None, None), (None, 2.0)]
    assert limits(trace="t.csv") == [(None, None)] * 2
    assert limits(trace="nobody.csv") == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--slo", "ttft_p98=1s"), "did you mean 'ttft_p99'?"),
        (("--slo", "ttft_p99=soon"), "must be a time"),
        (("--over", "workload.arrivals.rate_rps=1,2"), "it is the load"),
        (("--over", "engine.max_num_seq=1,2"), "did you mean"),
        (("--over", "nonsense"), "must have the form"),
        (("--search", "3"), "needs something to search over"),
        (("--storage", "sqlite:///a.db"), "give --search N"),
        (("--set", "workload.arrivals={process: all_at_once}"), "must have a rate or clients"),
        (("--set", "workload.num_requests=3"), "enough requests to keep somebody waiting"),
        (
            ("--set", "workload.num_requests=60", "--set", "workload.sessions={turns: {fixed: 30}}"),
            "while 20 finish (got 60 requests in sessions, one of each at a time, for",
        ),
        (("--set", "slo={}"), "must be given where the scenario has no slo"),
    ],
)
def test_each_mistake_is_one_sentence_and_exit_code_2(scenario, tmp_path, words, says):
    """Nothing half-written is left."""
    done = capacity(scenario, tmp_path / "c", *words, code=2)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert says in done.stderr
    assert not (tmp_path / "c" / "capacity.json").exists()


def test_a_wrong_metric_and_a_foreign_folder_are_sentences(scenario, tmp_path):
    """Of knee."""
    for metric, says in (("e2e_s.men", "did you mean 'e2e_s.mean'"), ("num_requests", "must be a latency")):
        assert says in knee(scenario, tmp_path / "k", "--metric", metric, code=2).stderr
        assert not (tmp_path / "k").exists()  # known before anything is simulated
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert "thesis.txt" in knee(scenario, tmp_path / "mine", code=2).stderr
    capacity(scenario, tmp_path / "c")
    assert "must be empty or an earlier knee's folder" in knee(scenario, tmp_path / "c", code=2).stderr


def test_help_has_examples():
    """That work as they stand."""
    for command in ("knee", "capacity"):
        text = run(command, "--help").stdout
        assert "Examples" in text and f"simserve {command} scenarios/" in text
