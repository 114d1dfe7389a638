"""Simulated speculation against the closed form (Leviathan, Kalman, Matias; ICML 2023): tokens per pass and speed-up.

z-tests: tokens of passes are independent and identically distributed, and which pass ends an answer is a stopping time,
so Σ tokens − passes · mean is a martingale with the variance below (Wald). One α, γ, c each; |z| < 4.5 for 40 of them.
"""

import math

import pytest

from simserve.records import Records
from simserve.speculation.acceptance import Acceptance
from simserve.speculation.formula import mean_speedup, mean_tokens_per_pass
from tests.builders import run_engine
from tests.reference_types import Settings
from tests.speculation_builders import constant_pass_time, run_speculating
from tests.step_times import ConstantStepTime
from tests.strategies import table_of

STEP_S = 0.01
NUM_REQUESTS, NUM_TOKENS = 16, 2001
TABLE = table_of([0] * NUM_REQUESTS, [8] * NUM_REQUESTS, [NUM_TOKENS] * NUM_REQUESTS)
LARGEST_Z = 4.5


def settings_for(policy) -> Settings:
    """Everyone runs at once, and nothing binds."""
    return Settings(
        policy=policy,
        allocator="paged",
        max_num_seqs=NUM_REQUESTS,
        max_num_batched_tokens=4096,
        max_model_len=4096,
        num_blocks=4096 * NUM_REQUESTS // 16,
        block_size=16,
    )


def variance_per_pass(probabilities) -> float:
    """Of the tokens of a pass: Σ over run lengths of (tokens − mean)² · P."""
    mean, reached, total = mean_tokens_per_pass(probabilities), 1.0, 0.0
    for i, probability in enumerate([*probabilities, 0.0]):
        total += (i + 1 - mean) ** 2 * reached * (1 - probability)
        reached *= probability
    return total


def decode_s(records: Records) -> float:
    """Seconds from first to last token, all requests together."""
    requests = records.requests
    return float((requests.last_token_ns - requests.first_token_ns).sum()) / 1e9


def z_of_tokens(records: Records, probabilities) -> float:
    """How far all tokens that passes gave, those cut off included, are from the mean, in standard deviations."""
    tokens = records.num_passes + records.num_accepted_tokens
    deviation = math.sqrt(records.num_passes * variance_per_pass(probabilities))
    return (tokens - records.num_passes * mean_tokens_per_pass(probabilities)) / deviation


@pytest.mark.parametrize("policy", ["continuous", "chunked"])
@pytest.mark.parametrize("gamma", [1, 2, 4, 8])
@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.6, 0.8, 0.9])
def test_tokens_per_pass(alpha, gamma, policy):
    """(1 − α^(γ+1)) / (1 − α), within sampling error, over α × γ."""
    probabilities = (alpha,) * gamma
    records = run_speculating(TABLE, settings_for(policy), Acceptance(probabilities, seed=gamma))
    assert abs(z_of_tokens(records, probabilities)) < LARGEST_Z


@pytest.mark.parametrize(
    ("alpha", "gamma", "cost", "published"),
    [(0.9, 8, 0.1, 3.40), (0.3, 8, 0.1, 0.79)]
    + [(alpha, gamma, cost, None) for alpha in (0.5, 0.8) for gamma in (2, 5) for cost in (0.0, 0.05, 0.3)],
)
def test_speed_up(alpha, gamma, cost, published):
    """Tokens per pass over γ·c + 1: plain decode time over that of passes, both simulated with a constant step. Beside
    the sampling error it may be off by what answers cut off their last pass, at most γ of 2,000 tokens."""
    probabilities, settings = (alpha,) * gamma, settings_for("continuous")
    plain = run_engine(TABLE, settings, ConstantStepTime(STEP_S))
    records = run_speculating(TABLE, settings, Acceptance(probabilities, seed=3), constant_pass_time(STEP_S, cost))
    speedup, theory = decode_s(plain) / decode_s(records), mean_speedup(probabilities, cost)
    mean = mean_tokens_per_pass(probabilities)
    error = math.sqrt(variance_per_pass(probabilities) / records.num_passes) / mean
    assert abs(speedup / theory - 1) < LARGEST_Z * error + gamma / (NUM_TOKENS - 1)
    if published is not None:
        assert round(theory, 2) == published
        assert error < 0.01, "too few passes to tell"
        assert speedup == pytest.approx(published, rel=0.03)


def test_acceptance_that_falls_along_the_draft():
    """Measured acceptances differ by position: 1 + Σ Π α_i, within sampling error."""
    probabilities = (0.9, 0.7, 0.4, 0.2)
    records = run_speculating(TABLE, settings_for("continuous"), Acceptance(probabilities, seed=11))
    assert abs(z_of_tokens(records, probabilities)) < LARGEST_Z


@pytest.mark.parametrize(("alpha", "tokens"), [(0.0, 1), (1.0, 5)])
def test_drafts_that_are_never_or_always_right(alpha, tokens):
    """No luck in it: one token per pass, or γ + 1 (2,000 tokens are 400 passes of five)."""
    records = run_speculating(TABLE, settings_for("continuous"), Acceptance((alpha,) * 4, seed=0))
    assert records.num_passes == NUM_REQUESTS * (NUM_TOKENS - 1) / tokens
    assert records.num_accepted_tokens == records.num_passes * (tokens - 1)


def test_passes_are_as_luck_has_it_from_seed_to_seed():
    """Over 200 seeds the z of tokens per pass has mean 0 and variance 1: neither biased nor too regular."""
    probabilities = (0.8,) * 3
    table = table_of([0] * 4, [8] * 4, [201] * 4)
    settings = settings_for("continuous")
    scores = [
        z_of_tokens(run_speculating(table, settings, Acceptance(probabilities, seed)), probabilities)
        for seed in range(200)
    ]
    mean = sum(scores) / 200
    variance = sum((z - mean) ** 2 for z in scores) / 199
    assert abs(mean) < 4 / math.sqrt(200)
    assert abs(variance - 1) < 4 * math.sqrt(2 / 199)
