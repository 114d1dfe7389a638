"""Screening: each way in which a recorded run makes no sense is named in one sentence, and a sound one passes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.validate.screen import problems, remarks
from tests.validate_builders import run_of

SOUND = ([0.0, 1.0, 2.0], [0.5, 1.5, 2.5], [2.0, 3.0, 4.0], [31, 31, 31])


def test_a_sound_run_has_no_problem():
    """Nor has one whose requests all came at once, or waited for hours behind each other."""
    assert problems(run_of(*SOUND)) == []
    firsts = np.arange(100) * 100.0
    assert problems(run_of([0.0] * 100, firsts, firsts + 100, [1000] * 100)) == []


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (run_of([1.7e9, 1.7e9 + 1], [27.5, 28.5], [30.0, 31.0], [10, 10]), "arrival and first token must be of one"),
        (run_of([27.5, 28.5], [1.7e9, 1.7e9 + 1], [1.7e9 + 2, 1.7e9 + 3], [10, 10]), "s after its arrival"),
        (run_of([0.0, 1.0], [0.5, 1.5], [1.7e9, 1.7e9], [10, 10]), "first token and last token must be of one clock"),
        (run_of([0, 1, 2], [0.5, 0.9, 2.5], [3, 3, 3], [10] * 3), "row 2 must have its first token after its arrival"),
        (run_of([0, 1, 2], [0.5, 1.5, 2.5], [3, 1.2, 3], [10] * 3), "row 2 must have its last token after its first"),
        (run_of([0, 1, 2], [0.5, np.nan, 2.5], [3, 3, 3], [10] * 3), "row 2 must have a first token where"),
        (run_of([0, 1], [np.nan] * 2, [np.nan] * 2, [10, 10]), "must have a request that finished"),
        (run_of([0, 1e-3], [5e-4, 1.5e-3], [2e-3, 3e-3], [1000, 1000]), "1.5e-06 s a token, which no server does"),
        (run_of([0, 9e4], [500, 9.1e4], [1e5, 1.9e5], [31, 31]), "3.31e+03 s a token, which no server does"),
        (run_of([0, 0, 0], [0, 0, 0], [1, 1, 1], [2, 2, 2**30]), "must give less than 100,000,000 tokens/s"),
    ],
)  # fmt: skip
def test_each_problem_is_named(run, expected):
    """Where, the rule, how far off, and how many requests."""
    found = problems(run)
    assert any(expected in text for text in found), found
    assert all(text.startswith("run.csv: ") and "\n" not in text for text in found)


def test_clocks_come_before_all_that_follows_from_them():
    """A run of two clocks would break every other rule too: only the cause is told."""
    run = run_of([1.7e9 + i for i in range(5)], [10.0 + i for i in range(5)], [20.0 + i for i in range(5)], [10] * 5)
    assert len(problems(run)) == 1


@given(st.integers(1, 9), st.integers(0, 2**31))
def test_early_first_tokens_are_counted(num_early, seed):
    """The first of them and how many there are."""
    rng = np.random.default_rng(seed)
    arrivals = np.arange(20.0)
    firsts = arrivals + 0.5
    early = np.sort(rng.choice(20, num_early, replace=False))
    firsts[early] -= 0.75
    found = problems(run_of(arrivals, firsts, arrivals + 3, [10] * 20))
    assert len(found) == 1
    assert f"row {early[0] + 1} must" in found[0] and f"{num_early} of 20 requests" in found[0]
    assert "it comes 0.25 s before" in found[0]


def test_settings_that_the_scenario_does_not_share_are_remarked():
    """Both values; what agrees, or what the scenario has no key for, is nothing to say."""
    settings = {"engine.max_num_seqs": 128, "engine.kv_cache.block_size": 16, "engine.kv_cache.unheard_of": 1}
    scenario = {"engine": {"max_num_seqs": 256, "kv_cache": {"block_size": 16}}}
    found = remarks(run_of(*SOUND, settings=settings), scenario)
    assert found == [
        "run.csv: the run was made with engine.max_num_seqs 128, and the scenario says 256",
        "run.csv: the run does not tell engine.kv_cache.num_blocks: the scenario's is an assumption",
    ]
    assert remarks(run_of(*SOUND), scenario) == []


def test_unfinished_requests_are_remarked():
    """How many, and that no figure counts them."""
    run = run_of([0, 1, 2], [0.5, np.nan, 2.5], [3, np.nan, 3], [10] * 3)
    assert problems(run) == []
    assert "1 of 3 requests have no last token" in remarks(run, {})[0]
