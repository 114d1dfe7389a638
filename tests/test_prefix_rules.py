"""What the prefix cache does, rule by rule, each on a case worked out by hand: by the reference and by the engine."""

from __future__ import annotations

import pytest

from tests.prefix_rules import RULES, PrefixRule
from tests.references import run_reference
from tests.strategies import MS

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


@every_rule
def test_the_reference_keeps_the_rule(rule: PrefixRule):
    """The slow engine's outcome is the one worked out by hand."""
    case = rule.case
    reference = run_reference(case)
    asks = reference.asks
    assert tuple(sum(seq.num_prefix_hit_tokens for seq in ask.attempts) for ask in asks) == rule.hits
    assert tuple(ask.attempts[-1].first_scheduled_ns / MS for ask in asks) == rule.scheduled
    assert tuple(ask.end_ns / MS for ask in asks) == rule.ends
    assert reference.paged.num_evictions == rule.num_evictions
    assert sum(seq.num_preemptions for seq in reference.seqs) == rule.num_preemptions
