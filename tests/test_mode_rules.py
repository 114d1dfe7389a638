"""Without a cache, and with speculation, rule by rule, each on a case worked out by hand: by the reference and by the
real engine, and every step, slot and block of both alike."""

from __future__ import annotations

import pytest

from tests.mode_rules import RULES
from tests.references import run_reference
from tests.test_client_rules import assert_outcomes, outcomes_of_engine, outcomes_of_reference
from tests.test_reference_agrees import check

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


@every_rule
def test_the_reference_keeps_the_rule(rule):
    """The slow engine's outcome is the one worked out by hand."""
    found, reference = outcomes_of_reference(rule)
    assert_outcomes(found, rule)
    seqs = reference.seqs
    totals = {name: sum(getattr(seq, name) for seq in seqs) for name, _ in rule.totals if hasattr(seqs[0], name)}
    assert totals.items() <= dict(rule.totals).items()


@every_rule
@pytest.mark.parametrize("fast_forward", [True, False], ids=["fast-forward", "step-by-step"])
def test_the_engine_keeps_the_rule(rule, fast_forward):
    """The real engine's outcome is the one worked out by hand, and so are its totals."""
    found, totals = outcomes_of_engine(rule, fast_forward)
    assert_outcomes(found, rule)
    assert totals == dict(rule.totals)
    check(rule.case, fast_forward)


def test_the_references_steps_without_a_cache():
    """Of two that compute beside each other every step has both, each as long as it is then."""
    steps = run_reference(RULES["who comes computes beside the others from the next step on"].case).steps
    assert [[(work.seq_id, work.num_new) for work in step.works] for step in steps] == [
        [(0, 3)],
        [(0, 4)],
        [(0, 5), (1, 2)],
        [(0, 6), (1, 3)],
    ]
