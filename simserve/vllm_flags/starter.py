"""A small scenario to begin with, when there is no server yet to copy."""

from __future__ import annotations

from simserve.scenario.messages import printable
from simserve.step_time.profile_schema import load_profile
from simserve.vllm_flags.devices import find_hardware
from simserve.vllm_flags.quoting import quoted

_TEXT = """\
# A scenario to begin with. Run it with: simserve run FILE
# Every key, with its meaning: simserve schema. More of them lie in the project's folder scenarios/.
name: starter
model: {model}  # a built-in name, a hub name of the same shape, or the path of a config.json
step_time: {step_time}
workload:
  num_requests: 200
  arrivals: {{process: poisson, rate_rps: {rate}}}  # or concurrency: 32, or a trace: {{trace: FILE, format: auto}}
  prompt_tokens: {{lognormal: {{mean: 400, sigma: 0.8, max: 2048}}}}
  output_tokens: {{lognormal: {{mean: 150, sigma: 0.7, max: 512}}}}
engine:
  policy: chunked  # or continuous, or static
  max_num_seqs: 64  # sequences in one step
  max_num_batched_tokens: 2048  # tokens in one step
  max_model_len: 4096  # prompt + answer
  kv_cache: {{allocator: paged, block_size: 16, num_blocks: 8192}}  # 131,072 tokens; or memory: 16GiB
slo: {{ttft_s: 1.0, tpot_s: 0.05}}  # what counts as goodput
seed: 0
variants:  # run on the same requests and compared
  as-above: {{}}
  static: {{engine: {{policy: static, max_wait_s: 1.0}}}}
"""


def starter_scenario(hardware: str | None, profile: str | None) -> str:
    """The starter's text, for a datasheet's hardware or a measured profile. Raises InputError for unknown names."""
    if profile is None:
        name = find_hardware(hardware or "h100-sxm").name
        step = f"{{roofline: {name}}}  # estimated from a datasheet; a measured {{profile: NAME}} is better"
        return _TEXT.format(model="llama-3.1-8b", step_time=step, rate="4.0")
    provenance = load_profile(profile).provenance
    step = f"{{profile: {quoted(profile)}}}  # measured in {provenance.dtype} on {printable(provenance.device_name)}"
    return _TEXT.format(model=quoted(provenance.model), step_time=step, rate="1.0")
