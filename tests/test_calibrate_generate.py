"""Steps of transformers' generate as an engine that is calibrated: which step is timed, and what it computes."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

pytest.importorskip("torch")  # calibrate is what needs it
pytest.importorskip("transformers")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.engines.engine import EngineSteps, StepShape, shape_of
from calibrate.engines.generate_engine import GenerateEngine
from calibrate.errors import CalibrationError
from calibrate.grid import Point
from calibrate.model import build_model, find_model
from calibrate.options import CalibrateOptions, Reach
from calibrate.replay.ask import AskedRequest, ReplaySettings
from calibrate.replay.driver import replay
from calibrate.replay.static import StaticReplay

MODEL = build_model(find_model("tiny"), "cpu", "fp32", "sdpa", 0)
Seen = list[tuple[int, int, int]]  # rows, new tokens and keys of every attention call of one layer


def engine() -> GenerateEngine:
    made = GenerateEngine(MODEL)
    assert made.start([]).kv_bytes_per_token == find_model("tiny").spec.kv_bytes_per_token("fp32")
    return made


def attended(run: Callable[[], object]) -> Seen:
    """Shapes that the first layer's attention was given while ``run`` ran."""
    seen: Seen = []
    original = torch.nn.functional.scaled_dot_product_attention

    def watch(query: torch.Tensor, key: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        rows, heads, length, _ = query.shape  # heads that share a KV head may be laid one behind the other
        seen.append((rows, heads * length // MODEL.config.num_attention_heads, key.shape[2]))
        return original(query, key, *args, **kwargs)

    with mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", watch):
        run()
    return seen[:: MODEL.config.num_hidden_layers]


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 5), st.integers(1, 40), st.booleans())
def test_the_timed_step_is_the_one_asked_for(rows: int, context: int, decodes: bool) -> None:
    """Seen from below: attention of that step has those rows and new tokens, over context and new tokens; one more
    step is taken, so that no end of a call is timed; and the engine's own account says the same."""
    shape: StepShape = ((1, context),) * rows if decodes else ((7, context - 1),) * rows
    made = engine()
    made.prepare(shape)
    seen = attended(made.step)
    new, cached = shape[0]
    assert made.computed() == shape
    assert seen[-2] == (rows, new, cached + new)
    made.stop()


def test_a_timed_decode_follows_two_as_in_a_group_under_way() -> None:
    """A group of three that decodes over 20 tokens has decoded over 18 and 19 before, one token of each row a step."""
    made = engine()
    made.prepare(shape_of(Point("decode", 3, 1, 20)))
    assert [(new, keys) for _, new, keys in attended(made.step)] == [(1, 19), (1, 20), (1, 21), (1, 22)]
    made.stop()


def test_a_chain_begins_as_a_group_does() -> None:
    """Five steps that end over 20 tokens: prompts of 16 are computed, some of them padded, and then each row decodes;
    every step has its own account and time, and one more is taken, so that no end of a call is timed."""
    made = engine()
    steps, point = EngineSteps(made), Point("decode", 3, 1, 20, num_repeats=4)
    steps.prepare(point)
    served = attended(lambda: [steps.timer(steps.step) for _ in range(5)])
    assert served == [(3, 16, 16), *((3, 1, keys) for keys in range(17, 23))]
    assert made.computed() == ((1, 20),) * 3
    assert made._mask[0].all() and 0 < int(made._mask[2].sum()) < 16
    made.stop()


def test_steps_of_the_replay_are_the_steps_that_are_timed() -> None:
    """What serves a group of unequal prompts gives attention the shapes of the points that its steps are read from."""
    asked = [AskedRequest(i, (5,) * prompt, 4) for i, prompt in enumerate((6, 9, 4))]
    static = StaticReplay(MODEL, ReplaySettings(3, 512, 64, num_blocks=8, block_size=16))
    served = attended(lambda: replay(static, asked))
    assert served == [(3, 9, 9), (3, 1, 10), (3, 1, 11), (3, 1, 12)]
    made = engine()
    for point, want in ((Point("prefill", 3, 9, 0), served[0]), (Point("decode", 3, 1, 11), served[3])):
        made.prepare(shape_of(point))
        assert attended(made.step)[-2] == want
    made.stop()


def test_sequences_that_differ_are_refused() -> None:
    """A group is padded: it has no step of unequal sequences, and no mixed one."""
    made = engine()
    with pytest.raises(CalibrationError, match="pads its sequences to be alike"):
        made.prepare(((1, 5), (1, 6)))
    made.stop()


def test_a_calibration_of_it_has_prefills_and_decodes_alone(tmp_path: object) -> None:
    """Within a reach and over a grid alike."""
    from calibrate.engines.setup import set_up_engine

    for options in (
        CalibrateOptions(model="tiny", engine="generate", reach=Reach(3, 20, 60, 50)),
        CalibrateOptions(model="tiny", engine="generate", max_batch_size=4, max_context=64, max_prefill_tokens=32),
    ):
        setup = set_up_engine(find_model("tiny"), "cpu", "fp32", options)
        assert {point.phase for point in setup.points} == {"prefill", "decode"}
        assert not any(point.context_spread for point in setup.points)
        for point in setup.points:
            setup.stepper.prepare(point)
            assert setup.timer(setup.stepper.step).wall_s > 0
        setup.stop()
