"""What a study keeps of the work of a run: the totals of summary.json, null where there is nothing of the kind."""

import pytest

from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from simserve.tasks.one_run import measured_variants
from simserve.tasks.work import WORK
from tests.sweep_builders import queue, task

DRAFTS = {"speculation": {"draft_tokens": 3, "acceptance": 0.7, "draft": {"cost": 0.1}}}


def data(**engine):
    """A queue that answers with forty tokens, plain and with drafts."""
    made = queue(0.3, 12, output_tokens={"fixed": 40})
    made["engine"].update(engine)
    return {**made, "variants": {"plain": {}, "drafts": {"engine": DRAFTS}}}


@pytest.fixture(scope="module")
def both():
    """The measures of a study, and the summaries of a run of the same."""
    run = simulate(parse_scenario(data()))
    return measured_variants(task(data())), {name: variant.summary for name, variant in run.variants.items()}


def test_totals_are_the_run_s(both):
    """Every request needs its prompt and 39 of its tokens; rejected drafts come on top; as a run says."""
    measures, summaries = both
    for name, summary in summaries.items():
        assert measures[name]["computed_tokens"] == summary["computed_tokens"]
        assert measures[name]["model_macs"] == summary["model_macs"]
    assert measures["plain"]["computed_tokens"] == 12 * (512 + 39)
    rejected = summaries["drafts"]["speculation"]["rejected_tokens"]
    assert measures["drafts"]["computed_tokens"] == 12 * (512 + 39) + rejected > 12 * (512 + 39)


def test_passes_are_there_with_speculation_alone(both):
    """Null for the plain engine, between one and four tokens with three drafts."""
    measures, summaries = both
    assert measures["plain"]["tokens_per_pass"] is None and measures["plain"]["acceptance_rate"] is None
    assert measures["drafts"]["tokens_per_pass"] == summaries["drafts"]["speculation"]["tokens_per_pass"]
    assert 1 < measures["drafts"]["tokens_per_pass"] < 4 and 0 < measures["drafts"]["acceptance_rate"] < 1


def test_every_variant_has_every_measure(both):
    """Columns of a sweep are the same for all, whatever a variant is."""
    for measures in both[0].values():
        assert set(WORK) <= set(measures)
