"""Slow tier: a model trained for minutes on the King James Bible, a draft of it, and what 8 and 4 bits do to it.

The order is the textbook's: int8 nearly free; of four bits, one scale for a whole tensor is the worst, rows are better,
groups of 128 better again and NF4 the best. How ruinous four bits per tensor are depends on outliers, which a model of
two million weights has few of (``VALIDATION.md``): here it is measurably the worst, not a ruin.
"""

import numpy as np
import pytest
import torch
from rich.console import Console

from calibrate.errors import CalibrationError
from calibrate.model import find_model
from calibrate.quantize.agreement_command import measure_agreement
from calibrate.quantize.command import quantize
from calibrate.quantize.intervals import bootstrap
from calibrate.quantize.matrices import projections, rounded
from calibrate.quantize.options import AgreementOptions, QuantizeOptions
from calibrate.quantize.subject import build, tokenize
from calibrate.train.command import TrainOptions, train_both
from calibrate.train.text import read_text
from simserve.memory.schemes import parse_scheme
from simserve.step_time.quality_schema import load_agreement, load_quantization

pytestmark = pytest.mark.validation


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Target and draft, five minutes of one core."""
    try:
        read_text(None)
    except CalibrationError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("small")
    train_both(TrainOptions(folder), Console(quiet=True))
    return folder


@pytest.fixture(scope="module")
def document(small):
    """Every scheme, on a thousand windows that no training saw."""
    given = QuantizeOptions(
        str(small / "target"), text=small / "held-out.txt", windows=500, answers=128, out=small / "q.json"
    )
    return load_quantization(quantize(given, Console(quiet=True)))


def test_training_beats_what_knows_only_the_vocabulary(document):
    """A perplexity far below the 1,024 of equal tokens, on text that was held out."""
    assert document.full_precision.perplexity.high < 100


def test_int8_is_nearly_free(document):
    """Less than a tenth of a percent of perplexity, and 99 of 100 greedy tokens."""
    for scheme in ("int8", "int8:128"):
        quality = next(row.quality for row in document.rows if row.scheme == scheme)
        assert quality.perplexity_ratio.low > 0.999 and quality.perplexity_ratio.high < 1.001
        assert quality.agreement.value > 0.99


def test_errors_fall_from_tensor_to_row_to_group_to_nf4(document):
    """Mean and worst over the matrices, as the chapters found on a model of theirs (up to 0.99 per tensor; per row
    ÷ 3.4; 0.1323 in groups of 128; 0.0952 NF4)."""
    rows = {row.scheme: row for row in document.rows}
    order = [rows[name] for name in ("int4:tensor", "int4:row", "int4", "nf4", "int8")]
    assert [row.mean_error for row in order] == sorted((row.mean_error for row in order), reverse=True)
    assert [row.worst_error for row in order] == sorted((row.worst_error for row in order), reverse=True)
    assert rows["int4"].mean_error == pytest.approx(0.1323, rel=0.2)
    assert rows["nf4"].mean_error == pytest.approx(0.0952, rel=0.1)


def test_perplexity_falls_in_the_same_order(small):
    """Paired by window: per tensor worse than per row, rows worse than groups of 128, and those than NF4, each beyond
    its interval of 95 %."""
    source = find_model(str(small / "target"))
    model = build(source, "fp32", 0)
    windows = tokenize(source, small / "held-out.txt").windows(500, 128)
    losses = {}
    for scheme in ("int4:tensor", "int4:row", "int4", "nf4"):
        with rounded(model, parse_scheme(scheme)), torch.inference_mode():
            logits = [(rows, model(input_ids=rows).logits[:, :-1]) for rows in windows.split(50)]
            losses[scheme] = np.concatenate(
                [
                    torch.nn.functional.cross_entropy(out.transpose(1, 2), rows[:, 1:], reduction="none")
                    .mean(1)
                    .numpy()
                    for rows, out in logits
                ]
            )
    for worse, better in (("int4:tensor", "int4:row"), ("int4:row", "int4"), ("int4", "nf4")):
        gain = bootstrap([losses[worse], losses[better]], lambda a, b: a - b)
        assert gain.low > 0, (worse, better, gain)


def test_outliers_make_one_scale_per_tensor_ruinous(small):
    """What large models have and this one lacks: with one input channel of every matrix eight times as large, and what
    feeds it as much smaller, the model computes the same, groups of 128 hardly suffer, and one scale per tensor ruins
    it."""
    source = find_model(str(small / "target"))
    model = build(source, "fp32", 0)
    _grow_outliers(model, 8.0)
    changed = small / "outliers"
    model.save_pretrained(changed)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (changed / name).write_bytes((small / "target" / name).read_bytes())
    text = small / "held-out.txt"
    given = QuantizeOptions(str(changed), ("int4:tensor", "int4", "nf4"), text, windows=100, out=small / "o.json")
    found = load_quantization(quantize(given, Console(quiet=True)))
    plain = build(source, "fp32", 0)
    ids = tokenize(source, text).windows(4, 64)
    with torch.inference_mode():
        assert torch.allclose(plain(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-2)
    tensor, group, nf4 = (row.quality.perplexity_ratio for row in found.rows)
    assert tensor.low > 5 and group.high < tensor.low / 3 and nf4.high < tensor.low / 3


def _grow_outliers(model, factor):
    """Channel 0 of every norm is made smaller and the columns that read it larger: the same function."""
    with torch.no_grad():
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for norm, readers in (
                (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
                (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
            ):
                norm.weight[0] /= factor
                for reader in readers:
                    reader.weight[:, 0] *= factor


def test_a_draft_agrees_more_than_chance_and_less_than_always(small):
    """Some of its first tokens are taken, not all; and what positions say is what passes made."""
    given = AgreementOptions(str(small / "target"), str(small / "draft"), small / "held-out.txt", out=small / "a.json")
    found = load_agreement(measure_agreement(given, Console(quiet=True)))
    assert found.intervals[0].low > 0.3 and found.intervals[0].high < 0.99
    reach, expected = 1.0, 1.0
    for rate in found.acceptance:
        reach *= rate
        expected += reach
    assert expected == pytest.approx(found.tokens_per_pass.value)
    assert len(projections(build(find_model(str(small / "draft")), "fp32", 0))) == 7
