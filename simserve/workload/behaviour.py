"""``workload.concurrency``, ``think_time_s`` and ``clients`` to a ``ClientPlan``: every random choice of the clients,
drawn before and independent of any policy, so that all variants meet the same people."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simserve.clients.plan import OPEN_LOOP, STAYS, ClientPlan, RetryPolicy
from simserve.errors import ScenarioError
from simserve.request import IntColumn
from simserve.scenario.client_models import CancelConfig, ClientsConfig, FixedThinkTime, RetryConfig, ThinkTimeConfig
from simserve.scenario.fields import MAX_SECONDS
from simserve.scenario.workload_models import WorkloadConfig
from simserve.workload.streams import stream
from simserve.workload.timestamps import NS_PER_S


def client_plan(config: WorkloadConfig, num_requests: int, seed: int) -> ClientPlan:
    """The clients of a workload of ``num_requests``; draws are per request, from streams of their own.

    Those who only send are OPEN_LOOP itself, which the compiled engine asks for. Raises ScenarioError for think times
    that would take decades.
    """
    if config.concurrency is None and config.clients == ClientsConfig():
        return OPEN_LOOP
    clients = config.clients
    return ClientPlan(
        concurrency=config.concurrency,
        think_ns=_think_ns(config.think_time_s, num_requests, config.concurrency or 0, seed),
        timeout_ns=_at_least_1_ns(clients.timeout_s),
        ttft_timeout_ns=_at_least_1_ns(clients.ttft_timeout_s),
        cancel_after_ns=_cancel_after_ns(clients.cancel, num_requests, seed),
        retry=_retry_policy(clients.retry) if clients.retry else None,
        jitter=_jitter(clients.retry, num_requests, seed) if clients.retry else None,
    )


def _think_ns(config: ThinkTimeConfig | None, num_requests: int, concurrency: int, seed: int) -> IntColumn | None:
    """What each request's client thinks before it; the first ``concurrency`` requests are sent at once, so theirs are
    drawn and not used."""
    if config is None:
        return None
    think_s: npt.NDArray[np.float64]
    if isinstance(config, FixedThinkTime):
        think_s = np.full(num_requests, config.fixed)
    else:
        think_s = stream(seed, "think_time").exponential(config.exponential.mean, num_requests)
    per_client_s = float(think_s[concurrency:].sum()) / concurrency
    if per_client_s > MAX_SECONDS:
        raise ScenarioError(
            f"workload.think_time_s: must add up to at most {MAX_SECONDS:.0e} seconds for each client "
            f"(got {per_client_s:.3g}); shorten it"
        )
    think_ns: IntColumn = np.rint(np.minimum(think_s, MAX_SECONDS) * NS_PER_S).astype(np.int64)
    return think_ns


def _cancel_after_ns(config: CancelConfig | None, num_requests: int, seed: int) -> IntColumn | None:
    """When each client leaves, counted from its first attempt; ``STAYS`` for those who never do. Who leaves does not
    depend on when, and a larger share keeps those who left under a smaller one."""
    if config is None or config.share == 0:
        return None
    leaves = stream(seed, "who_cancels").random(num_requests) < config.share
    after_s = stream(seed, "cancel_time").exponential(config.mean_after_s, num_requests).clip(1e-9, MAX_SECONDS)
    return np.where(leaves, np.rint(after_s * NS_PER_S).astype(np.int64), STAYS)


def _retry_policy(config: RetryConfig) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=config.max_attempts,
        backoff_ns=round(config.backoff_s * NS_PER_S),
        multiplier=config.multiplier,
        max_backoff_ns=round(config.max_backoff_s * NS_PER_S),
        jitter=config.jitter,
        after_rejection="rejected" in config.after,
        after_timeout="timed_out" in config.after,
    )


def _jitter(config: RetryConfig, num_requests: int, seed: int) -> npt.NDArray[np.float64]:
    """A draw per request and retry, uniform in [0, 1); without jitter the draws do not matter, and take no memory."""
    num_retries = config.max_attempts - 1
    if config.jitter == 0:
        return np.broadcast_to(0.0, (num_requests, num_retries))
    return np.stack([stream(seed, "retry_jitter", k).random(num_requests) for k in range(num_retries)], axis=1)


def _at_least_1_ns(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * NS_PER_S))
