"""The command line of a vLLM server, translated to a scenario."""

from simserve.vllm_flags.write import InitOptions, Written, from_vllm, init_scenario

__all__ = ["InitOptions", "Written", "from_vllm", "init_scenario"]
