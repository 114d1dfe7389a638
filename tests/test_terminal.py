"""What a person reads after a run: ratios, milliseconds, badges, notes."""

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from simserve.request import Tenant, Tenants
from simserve.scenario import parse_scenario
from simserve.scenario.slo_models import SloConfig
from simserve.simulated_model import simulated_model
from simserve.step_time.source import StepTimeSource
from simserve.terminal import ROWS, badges, comparison, look_up, print_result, progress_bar, tenants_table
from tests.run_builders import SCENARIO, two_variants


def _text(renderable, width=120):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(renderable)
    return console.file.getvalue()


def _row(text, label):
    return next(line for line in text.splitlines() if line.strip().startswith(label)).split(label)[1].split()


def test_ratios_are_against_the_first_variant():
    """``fast`` has half the TTFT of ``slow``: 1000 ms and 500 ms (0.50×)."""
    assert _row(_text(comparison(two_variants())), "TTFT mean, ms") == ["1,000", "500", "(0.50×)"]


def test_nothing_looked_up_is_no_rate_of_nothing():
    """Of a variant whose cache finds nothing again there is no hit rate, nor what an infinite cache would find."""
    result = two_variants()
    kv_cache = {name: variant.summary["kv_cache"] for name, variant in result.variants.items()}
    for name, looked_up in (("slow", 0), ("fast", 1000)):
        rates = {"prefix_hit_rate": looked_up / 4000, "prefix_hit_bound": looked_up / 2000}
        kv_cache[name].update(rates, prefix_looked_up_tokens=looked_up, prefix_evictions=0)
    text = _text(comparison(result))
    assert _row(text, "prefix hits, of looked-up tokens") == ["–", "25.0%"]
    assert _row(text, "with an infinite cache") == ["–", "50.0%"]


def test_rows_that_say_nothing_are_left_out():
    """No preemption anywhere, no line for it; a rejected request shows; goodput shows only when an SLO is named."""
    result = two_variants()
    text = _text(comparison(result))
    assert "preemptions" not in text
    assert _row(text, "rejected requests") == ["1", "1"]
    assert "goodput" in text
    for variant in result.variants.values():
        variant.scenario = variant.scenario.model_copy(
            update={"slo": variant.scenario.slo.model_copy(update={"ttft_s": None})}
        )
    assert "goodput" not in _text(comparison(result))


def _shared(*each):
    """A tenant each for the first requests of ``two_variants``, whose scenario has a limit of TTFT."""
    result = two_variants()
    table = replace(result.workload.table, tenants=Tenants(each, np.zeros(len(result.workload.table), np.int64)))
    result.workload = replace(result.workload, table=table)
    for variant in result.variants.values():
        of_chat = {"num_requests": 3, "num_finished": 2, "slo_attainment": 1.0}
        variant.summary |= {"tenants": {"chat": of_chat}, "fairness": {"slo_attainment": 1.0, "speed": 1.0}}
    return result


def test_limits_of_tenants_are_told_where_there_are_any():
    """The scenario's, or a tenant's own; who was promised nothing is not said to be within it."""
    result = _shared(Tenant("chat"))
    assert "requests within limits" in _text(tenants_table(result))
    for variant in result.variants.values():
        variant.scenario = variant.scenario.model_copy(update={"slo": SloConfig()})
    assert "within limits" not in _text(tenants_table(result))
    own = replace(result.workload.table, tenants=Tenants((Tenant("chat", e2e_s=9.0),), np.zeros(3, np.int64)))
    result.workload = replace(result.workload, table=own)
    assert _text(tenants_table(result)).count("within limits") == 2


def test_every_row_leads_to_a_number_of_the_summary():
    """The table reads the summary by its keys; a renamed key must not pass unseen."""
    summary = two_variants().variants["slow"].summary
    for row in ROWS:
        assert isinstance(look_up(summary, row.path), float | None)


def test_a_missing_number_is_a_dash():
    """Latencies of nothing are null in the summary and a dash on the screen."""
    result = two_variants()
    result.variants["fast"].summary["tpot_s"]["mean"] = None
    assert _row(_text(comparison(result)), "TPOT mean, ms") == ["1,000", "–"]


def test_badges_name_what_was_not_measured():
    """One line for variants that share an uncalibrated source, one for each that left the measured range."""
    result = two_variants()
    assert badges(result) == ["uncalibrated: all step times come from h100-sxm: a datasheet's figures"]
    measured = StepTimeSource("mine", "profile", "CPU", True, 0.02, "measured")
    result.variants["slow"].step_time.source = measured
    assert badges(result) == ["uncalibrated: fast: step times come from h100-sxm: a datasheet's figures"]
    result.variants["fast"].step_time.source = measured
    assert badges(result) == []
    result.variants["fast"].summary["extrapolated_step_share"] = 0.25
    assert badges(result) == ["extrapolated: 25.0% of the steps of fast lie outside what mine measured"]


def test_badges_name_what_was_changed_of_the_model():
    """Variants that differ by weights and heads share the line about their roofline; each change has one of its own."""
    result = two_variants()
    switches = {"slow": {"attention": "mha"}, "fast": {"attention": "mha", "weights": "int4"}}
    for name, keys in switches.items():
        variant = result.variants[name]
        variant.model = simulated_model(parse_scenario({**SCENARIO, **keys}))
        variant.step_time = SimpleNamespace(source=replace(variant.step_time.source, name=name))
    assert badges(result) == [
        "uncalibrated: all step times come from slow, fast: a datasheet's figures",
        "changed model: slow, fast: 14 KV heads instead of the model's own 2",
        "changed model: fast: weights kept as int4 (4.125 bits) and multiplied in bf16, without time for "
        "unpacking them",
    ]


def test_names_with_markup_are_printed_as_they_are():
    """A variant or a note called ``[red]x[/red]`` is text, not colour, and cannot break the table."""
    result = two_variants(notes=("3 rows [dropped] in [/x]",))
    result.variants = {"[red]x[/red]": result.variants["slow"]}
    console = Console(file=io.StringIO(), width=120)
    print_result(result, console)
    assert "[red]x[/red]" in console.file.getvalue()
    assert "note: 3 rows [dropped] in [/x]" in console.file.getvalue()


def test_a_pipe_gets_a_table_that_is_not_cut():
    """Where no terminal tells a width, eighty columns must not fold four variants."""
    result = two_variants()
    result.variants = {f"variant-number-{i}": result.variants["slow"] for i in range(4)}
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_result(result, console)
    assert sum("variant-number-3" in line for line in console.file.getvalue().splitlines()) == 1


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_for_terminals(is_terminal):
    """A terminal sees the variant and the requests done; a log file sees nothing."""
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
    with progress_bar(console) as on_progress:
        assert (on_progress is not None) == is_terminal
        if on_progress is not None:
            for done in (0, 500, 1000):
                on_progress("fast [x]", done, 1000)
    text = console.file.getvalue()
    assert ("fast [x]" in text and "1000/1000" in text) == is_terminal


def test_small_ratios_keep_two_digits():
    """A thousandth of the first variant's latency must not be printed as none of it."""
    result = two_variants()
    first, second = (variant.summary["ttft_s"] for variant in result.variants.values())
    second["mean"] = first["mean"] * 0.00713
    assert _row(_text(comparison(result)), "TTFT mean, ms")[-1] == "(0.0071×)"
