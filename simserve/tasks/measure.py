"""What a study keeps of one run: numbers only, after the warm-up, safe for JSON.

Latencies are of the requests that arrived after the warm-up and finished. Rates run from the first of those arrivals to
the last arrival where a steady state is measured, else to the last completion, as in ``simserve run``. A run that was
ended early counts what had happened by then; ``backlog.stopped_early`` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simserve.distributions import FloatColumn, describe, describe_bins
from simserve.fairness import fairness, good_requests, lowest_attainment
from simserve.metrics import SloTargets, latencies
from simserve.records import CANCELLED, FINISHED, NEVER, REJECTED, TIMED_OUT, Records, itl_bin_edges_s
from simserve.request import IntColumn, LookUp
from simserve.step_time.stretch import NS_PER_S
from simserve.tasks.backlog import BacklogTest, backlog_test
from simserve.tasks.backlogged import backlogged_rps
from simserve.tasks.quantiles import quantiles_with_unanswered
from simserve.tasks.warmup import WarmupRule, num_warmup
from simserve.timeline import SpanIntegral

LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queue_time_s")
_LAST = np.iinfo(np.int64).max

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Kept:
    """The requests that count (a mask over all), and the window of the rates in nanoseconds."""

    rows: Mask
    num_cut: int
    begin_ns: int
    end_ns: int

    def per_s(self, count: float) -> float | None:
        """A count over the window as a rate; null where the window has no width."""
        width_ns = self.end_ns - self.begin_ns
        return float(count) * NS_PER_S / width_ns if width_ns > 0 else None


def measure(records: Records, slo: SloTargets | None, rule: WarmupRule, is_closed_loop: bool = False) -> dict[str, Any]:
    """The measures of one run; keys are those that ``Measures`` documents. In a closed loop no backlog is tested."""
    requests = records.requests
    columns = latencies(requests)
    kept = _kept(records, rule)
    spans = SpanIntegral(records.spans.columns())
    status = requests.status[kept.rows]
    finished = kept.rows & (requests.status == FINISHED)
    good = good_requests(columns, finished, slo, requests.table.tenants)
    shared = fairness(requests, kept.rows, columns, good)
    lowest = lowest_attainment(requests, kept.rows, good)
    return {
        "num_requests": int(kept.rows.sum()),
        **{name: int((status == code).sum()) for name, code in _ENDS.items()},
        "num_turned_away": int(records.num_turned_away),
        "num_warmup_cut": kept.num_cut,
        "offered_rps": _offered_rps(requests.arrival_ns[kept.rows]),
        **_rates(records, kept),
        **_goodput(good, kept),
        **{name: _description(columns[name][finished]) for name in LATENCIES},
        "itl_s": _itl(records),
        **({"lowest_slo_attainment": lowest, "fairness": shared} if shared else {}),
        "unanswered_share": _share(int((status != FINISHED).sum()), len(status)),
        "slo_quantiles": _slo_quantiles(columns, records, kept),
        **_occupancy(records, spans, kept),
        **_prefix_hits(records, kept),
        "mean_prompt_tokens": _mean(requests.table.num_prompt_tokens[finished]),
        "mean_output_tokens": _mean(requests.num_emitted_tokens[finished]),
        "backlog": _backlog(records, kept, is_closed_loop),
        "backlogged_rps": backlogged_rps(records),
    }


_ENDS = {"num_finished": FINISHED, "num_rejected": REJECTED, "num_cancelled": CANCELLED, "num_timed_out": TIMED_OUT}


def _kept(records: Records, rule: WarmupRule) -> Kept:
    requests, n = records.requests, records.num_arrived
    arrival_ns = requests.arrival_ns[:n]
    num_cut = num_warmup(rule, arrival_ns)
    rows = np.zeros(len(requests.arrival_ns), np.bool_)
    rows[num_cut:n] = True
    begin_ns = int(arrival_ns[num_cut]) if n else 0
    end_ns = int(arrival_ns[-1]) if n else 0
    if records.stopped_ns != NEVER:
        end_ns = records.stopped_ns
    elif not rule.steady or begin_ns == end_ns:
        ends = requests.end_ns[rows & (requests.status == FINISHED)]
        end_ns = int(ends.max(initial=begin_ns))
    return Kept(rows, num_cut, begin_ns, end_ns)


def _offered_rps(arrival_ns: IntColumn) -> float | None:
    """Arrivals per second; null for one, and for all at once."""
    if len(arrival_ns) < 2 or arrival_ns[-1] == arrival_ns[0]:
        return None
    return (len(arrival_ns) - 1) * NS_PER_S / float(arrival_ns[-1] - arrival_ns[0])


def _ended_in_window(records: Records, kept: Kept) -> Mask:
    """Finished inside the window, whenever they arrived: what leaves a server in steady state."""
    requests = records.requests
    inside = (requests.end_ns >= kept.begin_ns) & (requests.end_ns <= kept.end_ns)
    ended: Mask = inside & (requests.status == FINISHED)
    return ended


def _rates(records: Records, kept: Kept) -> dict[str, float | None]:
    requests = records.requests
    ended = _ended_in_window(records, kept)
    outputs = int(requests.num_emitted_tokens[ended].sum())
    prompts = int(requests.table.num_prompt_tokens[ended].sum())
    return {
        "requests_per_s": kept.per_s(int(ended.sum())),
        "output_tokens_per_s": kept.per_s(outputs),
        "total_tokens_per_s": kept.per_s(prompts + outputs),
    }


def _goodput(good: Mask, kept: Kept) -> dict[str, float | None]:
    """The kept requests that met every SLO named, per second of the window and as a share of the kept ones."""
    num_good = int(good.sum())
    return {"goodput_rps": kept.per_s(num_good), "slo_attainment": _share(num_good, int(kept.rows.sum()))}


def _slo_quantiles(columns: dict[str, FloatColumn], records: Records, kept: Kept) -> dict[str, dict[str, float | None]]:
    """What SLOs are held against: who was turned away or timed out is infinitely late, with a TTFT (queue time) if his
    last attempt came so far. Who cancelled left of his own accord: he counts by what he had got, or not at all.
    ``answered_mean`` is over those with a value, ``lost_share`` the share that is infinite."""
    requests = records.requests
    finished = kept.rows & (requests.status == FINISHED)
    gone = kept.rows & (requests.status != FINISHED)
    reached = {"ttft_s": requests.first_token_ns, "queue_time_s": requests.first_scheduled_ns}
    found = {}
    for name in LATENCIES:
        there_ns = reached.get(name)
        known, lost = columns[name][finished], gone & (requests.status != CANCELLED)
        if there_ns is not None:
            part_way = gone & (there_ns != NEVER)
            known = np.concatenate([known, (there_ns - requests.arrival_ns)[part_way] / NS_PER_S])
            lost &= ~part_way
        num_lost = int(lost.sum())
        found[name] = {
            **quantiles_with_unanswered(known, num_lost),
            "answered_mean": _description(known)["mean"],
            "lost_share": _share(num_lost, num_lost + len(known)) or 0.0,
        }
    return found


def _description(values: FloatColumn) -> dict[str, float | None]:
    described = describe(values)
    return {key: described[key] for key in ("mean", "p50", "p90", "p95", "p99")}


def _itl(records: Records) -> dict[str, float | None]:
    """Gaps between tokens of the whole run, warm-up included: the engine counts them in bins without times."""
    total = int(records.itl_counts.sum())
    mean = records.itl_sum_ns / NS_PER_S / total if total else 0.0
    described = describe_bins(records.itl_counts, itl_bin_edges_s(), mean, records.itl_max_s)
    return {key: described[key] for key in ("mean", "p50", "p90", "p95", "p99")}


def _occupancy(records: Records, spans: SpanIntegral, kept: Kept) -> dict[str, float | int | None]:
    """Time-weighted means over the window; steps count when they began in it."""
    window = np.array([kept.begin_ns, kept.end_ns], np.float64)
    columns = spans.columns
    inside = (columns["begin_ns"] >= kept.begin_ns) & (columns["begin_ns"] < max(kept.end_ns, kept.begin_ns + 1))
    steps = columns["num_steps"][inside]
    num_steps = int(steps.sum())
    return {
        "mean_batch_size": _share(int((columns["num_seqs"][inside] * steps).sum()), num_steps),
        "mean_running": float(spans.column_means(window, "num_running")[0]),
        "mean_waiting": float(spans.column_means(window, "num_waiting")[0]),
        "busy_share": float(spans.busy_shares(window)[0]),
        "kv_used": float(spans.column_means(window, "kv_used")[0]) / max(1, records.capacity_tokens),
        "num_preemptions": records.num_preemptions,
        "extrapolated_step_share": _share(int(columns["num_extrapolated_steps"][inside].sum()), num_steps),
    }


def _prefix_hits(records: Records, kept: Kept) -> dict[str, float | None]:
    """What the kept requests found in a prefix cache when they were first admitted, and would in an infinite one; there
    where a prefix cache is."""
    look_ups = records.look_ups.columns()
    inside = kept.rows[look_ups["request_id"]]
    if not len(inside):
        return {}
    known, found, _, bound = (int(look_ups[name][inside].sum()) for name in LookUp._fields)
    return {"prefix_hit_rate": _share(found, known), "prefix_hit_bound": _share(bound, known)}


def _backlog(records: Records, kept: Kept, is_closed_loop: bool) -> dict[str, Any]:
    """Arrivals after the warm-up against everyone who leaves the waiting line, whenever they came.

    Not tested where the line bounds itself, so that no growth means nothing: in a closed loop, and where somebody was
    turned away (429) or ran out of patience. Time-outs and a limit that never came to bear bound nothing.
    """
    requests = records.requests
    num_gone = records.num_turned_away + int((requests.status == TIMED_OUT).sum())
    if is_closed_loop or num_gone:
        return BacklogTest().as_measures(records.stopped_ns != NEVER)
    scheduled, ended = requests.first_scheduled_ns, requests.end_ns
    left_ns = np.where(scheduled != NEVER, scheduled, np.where(ended != NEVER, ended, _LAST))
    return backlog_test(requests.arrival_ns[kept.rows], left_ns).as_measures(records.stopped_ns != NEVER)


def _mean(values: IntColumn) -> float | None:
    return float(values.mean()) if len(values) else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
