"""Recorded runs of vLLM's own scheduler: every step's composition is ours, prefix caching and preemption included."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")  # calibrate is what needs it
pytest.importorskip("transformers")

from simserve.recorded.differences import compare_steps
from simserve.recorded.steps import EngineRun, read_engine_run
from tests.real_engines import assert_identical, compare_with_ours
from tests.reference_types import Settings
from tests.vllm_runs import KEPT, ours_of


def recorded(name: str) -> EngineRun:
    return read_engine_run(KEPT[name].path)


@pytest.mark.parametrize("name", KEPT)
def test_every_step_is_ours(name: str) -> None:
    """Who computes what over what, admissions, preemptions, and how many blocks are free, step by step."""
    run, kept = recorded(name), KEPT[name]
    assert run.engine == "vLLM" and run.versions["vllm"] == "0.32.0"
    assert [(each.num_prompt_tokens, each.num_output_tokens) for each in run.requests] == [
        (len(asked.prompt), asked.num_output_tokens) for asked in kept.asked
    ]
    assert_identical(run, compare_with_ours(run, ours_of(kept.settings), kept.content))


def test_the_runs_show_what_they_are_for() -> None:
    """The known count of steps, preemptions in all of them, cut prompts in two, and hits that preemption alone does not
    explain in the other two."""
    assert (len(recorded("19-blocks").steps), recorded("19-blocks").num_preemptions) == (305, 14)
    for name, kept in KEPT.items():
        run = recorded(name)
        assert run.num_preemptions > 0
        first = {each.id: each.num_prompt_tokens for each in run.requests}
        found = 0
        for step in run.steps:
            for work in step.prefills:
                if work.id in step.admitted and first.pop(work.id, None) is not None:
                    found += work.num_context_tokens
        assert (found > 1000) == kept.settings.prefix_caching


@pytest.mark.parametrize("change", [{"null_blocks": 0}, {"nameless_first": False}, {"max_num_batched_tokens": 41}])
def test_another_setting_is_seen(change: dict[str, int]) -> None:
    """The comparison is no formality: a block more, the older order of free blocks (vLLM 0.19), or one token more of
    budget part the runs."""
    run, kept = recorded("prefixes-chunks"), KEPT["prefixes-chunks"]
    ours = Settings(**{**vars(ours_of(kept.settings)), **change})
    assert compare_with_ours(run, ours, kept.content).first is not None
    assert compare_steps(run.steps, run.steps).first is None
