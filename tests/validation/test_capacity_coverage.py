"""How often the interval of a capacity covers the truth: M/D/1 over independent seeds, against closed forms."""

import math

import pytest
from scipy.stats import binom

from simserve.capacity.cost import Question
from simserve.capacity.row import Asked, capacity_row
from simserve.capacity.search import Effort
from simserve.capacity.slo import parse_slo
from simserve.knee.probe import Probe
from tests.study_builders import md1, md1_rate_for_mean_wait, md1_rate_for_wait_quantile, real_runner, service_s

pytestmark = pytest.mark.validation

NUM_SEEDS, NUM_REQUESTS, REPLICATIONS = 12, 2000, 6
SERVICE_S = service_s(md1(1))
CASES = {
    "mean": (f"queue_time_mean={SERVICE_S!r}", md1_rate_for_mean_wait(SERVICE_S, SERVICE_S)),
    "mean, at 0.95 of saturation": (f"queue_time_mean={9.5 * SERVICE_S!r}", 0.95 / SERVICE_S),
    "p99": (f"queue_time_p99={5 * SERVICE_S!r}", md1_rate_for_wait_quantile(0.99, 5 * SERVICE_S, SERVICE_S)),
}


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """Both cases look along the same loads first: these are simulated once."""
    with real_runner(tmp_path_factory.mktemp("points")) as opened:
        yield opened


@pytest.mark.parametrize("case", CASES)
def test_intervals_of_capacity_cover_the_closed_form(case, runner):
    """At least as many of the seeds as a binomial of 95 % has with a probability of 99.9 %, and no bias beyond 3.3
    standard errors and half a percent (a run of thousands of requests is not an infinite one)."""
    text, truth = CASES[case]
    found = []
    for seed in range(NUM_SEEDS):
        queue = md1(NUM_REQUESTS, seed=1000 * (seed + 1), replications=REPLICATIONS)
        (variant,) = queue.variants
        asked = Asked((parse_slo(text),), Question(), Effort(REPLICATIONS, REPLICATIONS))
        found.append(capacity_row(Probe(queue, variant, runner), {}, asked)[0]["capacity"])
    covered = sum(each["low"] <= truth <= each["high"] for each in found)
    values = [each["value"] / truth for each in found]
    mean = math.fsum(values) / NUM_SEEDS
    error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (NUM_SEEDS - 1) / NUM_SEEDS)
    half_widths = [(each["high"] - each["low"]) / 2 / truth for each in found]
    print(f"{text}, runs of {NUM_REQUESTS} requests (more near saturation), {REPLICATIONS} replications: ", end="")
    print(f"{case}: {covered} of {NUM_SEEDS} cover; mean / truth {mean:.4f} ± {error:.4f}; ", end="")
    print(f"half-width {math.fsum(half_widths) / NUM_SEEDS:.3f}")
    assert covered >= binom.ppf(0.001, NUM_SEEDS, 0.95)
    assert abs(mean - 1) < 3.3 * error + 0.005
