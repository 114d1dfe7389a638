"""What the page says, before any HTML."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from simserve.report.content import MAX_IDS, MAX_LEAVES, MAX_REASONS, MAX_SURFACES, flat, page_content
from tests.report_builders import MANIFEST, PAGED, PROFILE, ROOFLINE, STATIC, SourcedStepTime, run_of, skewed_table


def section(content, name):
    """A section by its id."""
    return next(section for section in content.sections if section.id == name)


@pytest.fixture(scope="module")
def content():
    return page_content(run_of(notes=["3 rows dropped: zero output tokens"]), MANIFEST)


def test_the_header_has_the_facts(content):
    """Model, where step times come from with their error, workload, seed."""
    facts = {name: text.replace("\u00a0", " ") for name, text in content.facts}
    assert facts["model"] == "toy-25m" and facts["seed"] == "7"
    assert facts["step times"] == "measured: toy-cpu on a small CPU, held-out error 3.1 %"
    assert facts["workload"].startswith("64 requests over ")


def test_each_variant_is_described_by_its_engine(content):
    """Policy, cache with its way to reserve, slots."""
    assert content.descriptions["static-contiguous"] == "static, contiguous cache reserving max_tokens, 8 slots"
    assert content.descriptions["continuous-paged"] == "continuous, paged cache, 8 slots"


def test_a_variant_is_described_by_what_its_switches_say():
    """Weights, heads and drafts, and that there is no cache."""
    run = run_of({"a": PAGED, "b": PAGED})
    first, second = run.variants["a"].scenario, run.variants["b"].scenario
    first.weights, second.attention = "int4", "mqa"
    run.variants["b"].model.entry = lambda: {"num_kv_heads": 1}
    first.engine.kv_cache.allocator = "none"
    second.engine.max_num_seqs = 1
    described = page_content(run, MANIFEST).descriptions
    assert described["a"] == "continuous, no cache, 8 slots, int4 weights"
    assert described["b"] == "continuous, paged cache, 1 slot, 1 KV head"


def test_estimates_of_one_kind_are_named_once():
    """Four rooflines of one device are four words; another device stands for itself."""
    run = run_of({name: PAGED for name in "abcd"}, step_time=SourcedStepTime(ROOFLINE))
    for name, variant in run.variants.items():
        device = "another" if name == "d" else ROOFLINE.device
        variant.step_time = SourcedStepTime(replace(ROOFLINE, name=f"roofline-{name}", device=device))
    facts = dict(page_content(run, MANIFEST).facts)
    assert facts["step times"] == "estimated by 3 rooflines for a large GPU; estimated by roofline-d for another"


def test_sections_follow_the_reader_s_questions(content):
    """Latency, then what happened, then why, then what went in; nothing was rejected, so nothing says so."""
    assert [s.id for s in content.sections] == ["latency", "load", "cache", "slots", "step-times", "workload"]


def test_dropped_rows_of_a_trace_are_listed(content):
    """The workload's notes stand with its charts, word for word."""
    assert section(content, "workload").notes == ("3 rows dropped: zero output tokens",)


def test_rejected_requests_are_listed_with_reason_and_ids():
    """Same reason, one row: how many, and the first ids; the rest are counted."""
    run = run_of({"tight": replace(PAGED, max_model_len=10)}, skewed_table(30))
    rejected = run.variants["tight"].records.requests.reject_reason
    ((name, reason, number, ids),) = section(page_content(run, MANIFEST), "rejected").table.rows
    assert name == "tight" and int(number) == len(rejected) > MAX_IDS and reason in rejected.values()
    assert ids.endswith(f"and {len(rejected) - MAX_IDS} more")


def test_very_many_reasons_are_cut_with_their_number():
    """A table of reasons never outgrows the page."""
    run = run_of({"c": PAGED})
    reasons = {i: f"reason {chr(65 + i % 26)}{chr(65 + i // 26)}" for i in range(50)}
    run.variants["c"].records.requests.reject_reason.update(reasons)
    rows = section(page_content(run, MANIFEST), "rejected").table.rows
    assert len(rows) == MAX_REASONS + 1 and rows[-1][1] == f"{50 - MAX_REASONS} other reasons"


def test_one_surface_for_one_step_time_model(content):
    """Four variants on one profile: its three charts are drawn once."""
    assert [figure.id for figure in section(content, "step-times").figures] == [
        "surface-m0-context",
        "surface-m0-batch",
        "surface-m0-prefill",
    ]


def test_variants_with_step_times_of_their_own_have_surfaces_of_their_own():
    """Two sources, six charts, two notes, both in the header; only the first few are drawn when there are many."""
    run = run_of({f"v{i}": PAGED for i in range(6)}, skewed_table(8))
    for i, variant in enumerate(run.variants.values()):
        variant.step_time = SourcedStepTime(replace(PROFILE, name=f"profile-{i}"))
    steps = section(page_content(run, MANIFEST), "step-times")
    assert len(steps.figures) == 3 * MAX_SURFACES
    assert steps.notes[-1] == f"Drawn for the first {MAX_SURFACES} of 6 step-time models."


def test_a_formula_is_introduced_as_one():
    """No marks to look for where nothing was measured."""
    run = run_of({"c": PAGED}, skewed_table(8), SourcedStepTime(ROOFLINE))
    assert "no step was measured" in section(page_content(run, MANIFEST), "step-times").intro


def test_the_manifest_is_shown_whole():
    """Plain values are in sight, nested ones under their dotted path, nothing is left out."""
    manifest = {"seed": 7, "none": None, "deep": {"er": {"x": 1}, "list": [1, 2], "empty": {}}, "top": ["a", "b"]}
    content = page_content(run_of({"c": PAGED}, skewed_table(4)), manifest)
    assert content.provenance == [("seed", "7"), ("none", "–"), ("top", "a, b")]
    assert content.manifest == [("deep.er.x", "1"), ("deep.list", "1, 2"), ("deep.empty", "{}")]


def test_of_a_thousand_tenants_the_page_has_the_first():
    """Their keys would be megabytes for each variant; the file beside the page has all of them, and lists too."""
    many = {f"t{i}": {"rate_rps": 1.0, "slo": {"ttft_s": 2.0}} for i in range(1000)}
    leaves = list(flat({"workload": {"tenants": many, "values": list(range(200_000))}, "seed": 1}))
    assert leaves[:2] == [("workload.tenants.t0.rate_rps", "1.0"), ("workload.tenants.t0.slo.ttft_s", "2.0")]
    assert leaves[2 * MAX_LEAVES] == ("workload.tenants.…", f"{1000 - MAX_LEAVES} more in the file")
    assert leaves[-2][1].endswith(f", {MAX_LEAVES - 1}, … (200,000 in the file)") and leaves[-1] == ("seed", "1")
    assert len(leaves) == 2 * MAX_LEAVES + 3


def test_an_slo_brings_goodput_and_its_line():
    """Asked for: goodput in the table, a rule in the TTFT chart, its value in words."""
    slo = SimpleNamespace(ttft_s=1.0, tpot_s=None, e2e_s=None)
    content = page_content(run_of({"s": STATIC, "c": PAGED}, slo=slo), MANIFEST)
    assert "goodput_rps" in {row.measure.path for row in content.key_rows}
    ttft = section(content, "latency").figures[0]
    assert "The SLO is 1.00" in ttft.caption
    assert "'text': 'SLO'" in str(ttft.spec)


def test_an_slo_beyond_the_chart_does_not_stretch_it():
    """A minute of SLO over answers of a second: said in words, not drawn."""
    slo = SimpleNamespace(ttft_s=3600.0, tpot_s=None, e2e_s=None)
    ttft = section(page_content(run_of({"c": PAGED}, slo=slo), MANIFEST), "latency").figures[0]
    assert "The SLO is 60.0" in ttft.caption and "'text': 'SLO'" not in str(ttft.spec)
