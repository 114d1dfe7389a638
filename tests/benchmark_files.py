"""Results of load generators in their true formats, with figures of our own making.

vLLM's keys and their order are those of ``vllm/benchmarks/serve.py`` (0.32.0); guidellm's those of its pydantic models
``GenerativeBenchmarksReport`` (0.8.1, and 0.3.1 for the older form), cut to what a reader could want.
"""

import json

ARRIVALS = (0.5, 0.0, 2.0)  # seconds after the first; the second request of the file came first
TTFTS = (0.25, 0.5, 0.125)
GAPS = ((0.5, 0.25), (1.0,), ())
PROMPTS = (10, 20, 30)
OUTPUTS = (3, 2, 1)


def vllm_result(**changes):
    """The object that ``vllm bench serve --save-result --save-detailed`` writes; a change to None drops the key."""
    data = {
        "date": "20260101-120000",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "meta-llama/Llama-3.1-8B",
        "tokenizer_id": "meta-llama/Llama-3.1-8B",
        "num_prompts": 3,
        "request_rate": 2.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 2.125,
        "completed": 3,
        "failed": 0,
        "total_input_tokens": 60,
        "total_output_tokens": 6,
        "request_throughput": 3 / 2.125,
        "request_goodput": None,
        "output_throughput": 6 / 2.125,
        "total_token_throughput": 66 / 2.125,
        "input_lens": list(PROMPTS),
        "output_lens": list(OUTPUTS),
        "ttfts": list(TTFTS),
        "itls": [list(gaps) for gaps in GAPS],
        "start_times": [1000.0 + arrival for arrival in ARRIVALS],
        "generated_texts": ["a", "b", "c"],
        "errors": ["", "", ""],
        "max_output_tokens_per_s": 3.0,
        "max_concurrent_requests": 2,
        "rtfx": 0.0,
        "mean_ttft_ms": 291.6666,
        "median_ttft_ms": 250.0,
        "std_ttft_ms": 155.9,
        "p99_ttft_ms": 495.0,
        "mean_tpot_ms": 687.5,
        "median_tpot_ms": 687.5,
        "std_tpot_ms": 312.5,
        "p99_tpot_ms": 996.9,
        "mean_itl_ms": 583.3,
        "median_itl_ms": 500.0,
        "std_itl_ms": 311.8,
        "p99_itl_ms": 990.0,
    }
    dropped = {key for key, value in changes.items() if value is DROP}
    return {key: value for key, value in {**data, **changes}.items() if key not in dropped}


DROP = object()
DETAILS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")


def vllm_aggregates():
    """What is left without --save-detailed."""
    return vllm_result(**dict.fromkeys(DETAILS, DROP))


def guidellm_report(newer=True, **changes):
    """A report of one benchmark, with ``changes`` to that benchmark; ``newer`` is the form of 0.4 and later."""
    begin = 1_790_000_000.0
    rows = [_newer(i, begin) if newer else _older(i, begin) for i in range(3)]
    totals = {"successful": 3, "incomplete": 0, "errored": 0, "total": 3}
    strategy = {"type_": "constant", "rate": 2.0}
    benchmark = {
        "type_": "generative_benchmark",
        "start_time": begin,
        "end_time": begin + 2.125,
        "duration": 2.125,
        "requests": {"successful": rows, "incomplete": [], "errored": [], "total": None},
        "metrics": {
            "time_to_first_token_ms": _distribution(291.6666, 250.0),
            "inter_token_latency_ms": _distribution(687.5, 687.5),
            "time_per_output_token_ms": _distribution(400.0, 400.0),
            "request_latency": _distribution(0.875, 1.0),
            "requests_per_second": _distribution(1.4, 1.4),
            "output_tokens_per_second": _distribution(2.8, 2.8),
        },
    }
    if newer:
        benchmark["config"] = {"strategy": strategy, "sample_size": None}
        benchmark["metrics"]["request_totals"] = totals
    else:
        benchmark["args"] = {"strategy": strategy, "strategy_index": 0}
        benchmark["request_totals"] = totals
    report = {"benchmarks": [{**benchmark, **changes}]}
    return {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "config": {}, **report} if newer else report


def _times(i, begin):
    start = begin + ARRIVALS[i]
    first = start + TTFTS[i]
    return start, first, first + sum(GAPS[i])


def _newer(i, begin):
    start, first, last = _times(i, begin)
    timings = {
        "targeted_start": start - 0.002,
        "queued": begin - 1,
        "dequeued": begin - 0.5,
        "resolve_start": start,
        "request_start": start,
        "first_token_iteration": first,
        "last_token_iteration": last,
        "request_iterations": len(GAPS[i]) + 1,
        "token_iterations": len(GAPS[i]) + 1,
        "request_end": last + 0.001,
        "resolve_end": last + 0.001,
        "finalized": last + 0.002,
    }
    return {
        "type_": "generative_request_stats",
        "request_id": str(i),
        "output": "text",
        "info": {"request_id": str(i), "status": "completed", "timings": timings},
        "input_metrics": {"text_tokens": PROMPTS[i]},
        "output_metrics": {"text_tokens": OUTPUTS[i]},
        "prompt_tokens": PROMPTS[i],
        "output_tokens": OUTPUTS[i],
        "time_to_first_token_ms": 1000 * TTFTS[i],
    }


def _older(i, begin):
    start, first, last = _times(i, begin)
    return {
        "type_": "generative_text_response",
        "request_id": str(i),
        "request_type": "text_completions",
        "scheduler_info": {"requested": True, "completed": True},
        "prompt": "text",
        "output": "text",
        "prompt_tokens": PROMPTS[i],
        "output_tokens": OUTPUTS[i],
        "start_time": start,
        "end_time": last + 0.001,
        "first_token_time": first,
        "last_token_time": last,
        "request_latency": last + 0.001 - start,
        "time_to_first_token_ms": 1000 * TTFTS[i],
    }


def _distribution(mean, median):
    percentiles = {"p001": median, "p50": median, "p90": median, "p95": median, "p99": median, "p999": median}
    summary = {"mean": mean, "median": median, "std_dev": 0.0, "count": 3, "total_sum": 3 * mean}
    return {"successful": {**summary, "percentiles": percentiles}, "incomplete": {}, "errored": {}, "total": summary}


def write(path, data):
    """As JSON, and the path."""
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path
