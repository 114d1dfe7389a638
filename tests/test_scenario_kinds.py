"""Laws over every section that comes in kinds, such as step times, arrivals, lengths, policies and allocators."""

from typing import Any

import pytest

from simserve.errors import ScenarioError
from simserve.scenario import parse_scenario
from simserve.scenario.kinds import CHOICES
from simserve.scenario.merge import merge
from tests.scenario_builders import SMALL

TENANT = {key: value for key, value in SMALL["workload"].items() if key != "num_requests"}
# The least that each kind needs: written out here, so that a kind added without a test is noticed.
LEAST: dict[str, dict[str, dict[str, Any]]] = {
    "step_time": {
        "profile": {"profile": "p"},
        "operators": {"operators": "tables"},
        "roofline": {"roofline": "h100-sxm"},
    },
    "attention": {"kv_heads": {"kv_heads": 2}},
    "workload": {
        "trace": {"trace": "t.csv"},
        "tenants": {"num_requests": 9, "tenants": {"a": TENANT}},
        "generated": SMALL["workload"],
    },
    "workload.arrivals": {
        "poisson": {"process": "poisson", "rate_rps": 2.0},
        "gamma": {"process": "gamma", "rate_rps": 2.0, "cv": 2.0},
        "weibull": {"process": "weibull", "rate_rps": 2.0, "cv": 2.0},
        "constant": {"process": "constant", "rate_rps": 2.0},
        "all_at_once": {"process": "all_at_once"},
        "windows": {"process": "windows", "windows": [{"duration_s": 60.0, "rate_rps": 2.0}]},
        "diurnal": {"process": "diurnal", "rate_rps": 2.0},
        "bursts": {
            **{"process": "bursts", "rate_rps": 2.0, "factor": 5.0},
            **{"mean_burst_s": 10.0, "mean_quiet_s": 60.0},
        },
    },
    "workload.think_time_s": {"fixed": {"fixed": 1.5}, "exponential": {"exponential": {"mean": 2.0}}},
    "workload.prompt_tokens": {
        "fixed": {"fixed": 3},
        "uniform": {"uniform": {"low": 1, "high": 2}},
        "lognormal": {"lognormal": {"mean": 9.0, "sigma": 1.0}},
        "values": {"values": [1]},
        "quantiles": {"quantiles": {"p0": 1, "p100": 2}},
    },
    "engine": {
        policy: {"policy": policy, "max_num_seqs": 4, "kv_cache": {"allocator": "paged", "num_blocks": 64}}
        for policy in ("static", "continuous", "chunked", "transformers")
    },
    "engine.kv_cache": {
        "paged": {"allocator": "paged", "num_blocks": 64},
        "contiguous": {"allocator": "contiguous", "num_blocks": 64},
        "none": {"allocator": "none"},
    },
    "engine.speculation.draft": {
        "cost": {"cost": 0.1},
        "profile": {"profile": "p"},
        "roofline": {"roofline": "h100-sxm", "model": "qwen2.5-0.5b"},
    },
}
for path in ("workload.output_tokens", "workload.sessions.turns", "workload.sessions.new_tokens"):
    LEAST[path] = LEAST["workload.prompt_tokens"]
LEAST["workload.sessions.think_time_s"] = LEAST["workload.think_time_s"]


def nested(where: str, section: dict[str, Any]) -> dict[str, Any]:
    for key in reversed(where.split(".")):
        section = {key: section}
    return section


def base_for(where: str) -> dict[str, Any]:
    """The small scenario, with a closed loop where only one can have the section, sessions, or speculation."""
    if where == "engine.speculation.draft":
        speculation = {"draft_tokens": 2, "acceptance": 0.5}
        return merge(SMALL, {"engine": {"policy": "continuous", "speculation": speculation}})
    if where.startswith("workload.sessions."):
        return merge(SMALL, {"workload": {"sessions": {"turns": {"fixed": 2}}}})
    return merge(SMALL, {"workload": {"concurrency": 2}}) if where == "workload.think_time_s" else SMALL


def pairs() -> list[tuple[str, str, str]]:
    return [(where, old, new) for where, kinds in LEAST.items() for old in kinds for new in kinds if old != new]


def test_every_kind_is_known_here() -> None:
    """The table above lists the sections and kinds that there are."""
    assert {".".join(map(str, path)): set(choice.kinds) for path, choice in CHOICES.items()} == {
        where: set(kinds) for where, kinds in LEAST.items()
    }


@pytest.mark.parametrize(("where", "old", "new"), pairs())
def test_an_override_of_another_kind_needs_no_clean_up(where: str, old: str, new: str) -> None:
    """Law: a valid scenario of one kind, with the least of another kind laid over it, is valid and of that kind."""
    base = merge(base_for(where), nested(where, LEAST[where][old]))
    parse_scenario(base)
    scenario: object = parse_scenario(merge(base, nested(where, LEAST[where][new])))
    for key in where.split("."):
        scenario = getattr(scenario, key)
    assert type(scenario) is CHOICES[tuple(where.split("."))].kinds[new]


@pytest.mark.parametrize(("where", "other", "kind"), pairs())
def test_a_key_of_another_kind_names_its_owner(where: str, other: str, kind: str) -> None:
    """Law: each key that only other kinds know is refused in this one, with its owners named."""
    choice = CHOICES[tuple(where.split("."))]
    marks = {choice.mark(each) for each in choice.kinds} if choice.key is None else {choice.key}
    for key in sorted(choice.keys(other) - choice.keys(kind) - marks):
        section = merge(base_for(where), nested(where, LEAST[where][kind]))
        section = merge(section, nested(where, {key: 1}))
        with pytest.raises(ScenarioError, match=rf"^s: {where}: {key!r} belongs to .*\b{other}\b.*{kind}\)"):
            parse_scenario(section, "s")
