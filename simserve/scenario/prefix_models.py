"""``shared_prefixes:`` of a workload or a tenant: system prompts that shares of its requests begin with."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from simserve.scenario.fields import MAX_REQUESTS, Strict, Tokens

_ROUNDING = 1e-9  # 0.7 + 0.2 + 0.1 is no more than 1


class SharedPrefix(Strict):
    """A share of the requests begins with one of ``count`` texts of ``tokens`` tokens, each as likely as the others."""

    tokens: Tokens = Field(description="length of the common beginning, tokens")
    share: float = Field(1.0, gt=0, le=1, description="of all requests: 0.8 is four in five, drawn one by one")
    count: int = Field(1, ge=1, le=MAX_REQUESTS, description="how many different ones there are")


def _shares_of_all(prefixes: list[SharedPrefix]) -> list[SharedPrefix]:
    total = sum(prefix.share for prefix in prefixes)
    if total > 1 + _ROUNDING:
        raise ValueError(f"the shares must add up to at most 1 (got {total:.6g}); a request has one beginning")
    return prefixes


def _alone(value: object) -> object:
    """One may stand without a list, so that ``--set workload.shared_prefixes.share=0.5`` and sweeps reach into it."""
    return [value] if isinstance(value, dict) else value


SharedPrefixes = Annotated[
    list[SharedPrefix],
    Field(max_length=1000),
    AfterValidator(_shares_of_all),
    BeforeValidator(_alone, json_schema_input_type=SharedPrefix | list[SharedPrefix]),
]
