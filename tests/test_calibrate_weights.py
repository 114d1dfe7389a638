"""Profiles of quantized linear layers and of other KV heads: what is accepted, what runs, what the profile says."""

import pytest
import torch
from torch.ao.nn.quantized.dynamic import Linear as Int8Linear

from calibrate.command import _check, default_path
from calibrate.errors import CalibrationError
from calibrate.model import ModelSource, build_model, find_model, with_kv_heads
from calibrate.options import CalibrateOptions
from calibrate.provenance import identity
from calibrate.quantize.kernels import Int4Linear, check_kernel, int4_model, int8_model, quantized
from calibrate.quantize.rounding import round_weight
from calibrate.server.address import parse_address
from calibrate.server.command import _check as check_server
from calibrate.server.command import _told
from calibrate.server.profile import command_of
from calibrate.setup import set_up
from simserve.errors import FootprintError, ModelError
from simserve.memory.schemes import parse_scheme
from simserve.model_spec import load_model_spec

TINY = ModelSource(load_model_spec("tiny"), None, False)


def options(**more):
    limits = {"max_batch_size": 2, "max_context": 32, "max_prefill_tokens": 16}
    return CalibrateOptions(**{"model": "tiny", "device": "cpu", **limits, **more})


@pytest.mark.parametrize(
    ("weights", "dtype", "expected"),
    [
        ("int8", "auto", ("int8", "fp32")),
        ("int4", "auto", ("int4", "bf16")),
        ("int4:128", "bf16", ("int4", "bf16")),
        ("INT4:64", "auto", ("int4:64", "bf16")),
        ("bf16", "auto", (None, "bf16")),  # weights in the dtype are no scheme of their own
        ("fp32", "fp32", (None, "fp32")),
    ],
)
def test_schemes_have_the_dtype_that_their_kernel_computes_in(weights, dtype, expected):
    """Canonical name and dtype in full."""
    assert check_kernel(weights, dtype, "cpu") == expected


@pytest.mark.parametrize(
    ("weights", "dtype", "device", "message"),
    [
        ("nf4", "auto", "cpu", r"torch has kernels here for int8, int4, int4:64, int4:32 \(got nf4\)"),
        ("int4:row", "auto", "cpu", r"kernels here .*\(got int4:row\)"),
        ("int4:16", "auto", "cpu", r"kernels here .*\(got int4:16\)"),
        ("int8:128", "auto", "cpu", r"kernels here .*\(got int8:128\)"),
        ("4.125", "auto", "cpu", r"kernels here .*\(got 4.125\)"),
        ("int8", "bf16", "cpu", r"the int8 kernel computes in fp32 \(got dtype bf16\)"),
        ("int4", "fp32", "cpu", r"the int4 kernel computes in bf16 \(got dtype fp32\)"),
        ("bf16", "fp32", "cpu", r"bf16 must be the dtype itself \(got dtype fp32\)"),
        ("int8", "auto", "cuda", r"int8 runs on CPUs only \(got cuda\)"),
        ("int9", "auto", "cpu", "unknown scheme 'int9'; did you mean"),
    ],
)
def test_what_has_no_kernel_is_one_sentence(weights, dtype, device, message):
    """Never a factor instead of a measurement."""
    with pytest.raises((CalibrationError, FootprintError), match=message):
        check_kernel(weights, dtype, device)


def test_groups_that_do_not_divide_the_layers_are_refused():
    """Layers of 64 inputs have no groups of 128."""
    model = build_model(TINY, "cpu", "bf16", "sdpa", 0)
    with pytest.raises(CalibrationError, match=r"multiple of 128 \(got 64\); use --weights int4:64"):
        quantized(model, "int4")


@pytest.mark.parametrize(("scheme", "kind"), [("int8", Int8Linear), ("int4:32", Int4Linear)])
def test_every_linear_layer_is_really_replaced(scheme, kind):
    """Seven of each layer and the head, and none is left in floats."""
    model = quantized(build_model(TINY, "cpu", "fp32", "sdpa", 0), scheme)
    assert sum(isinstance(module, kind) for module in model.modules()) == 15
    assert not any(isinstance(module, torch.nn.Linear) for module in model.modules())


def test_int8_layers_compute_with_weights_rounded_by_row():
    """The kernel's own weights against the arithmetic: the same level or the next (torch's outermost is 127.5)."""
    linear = torch.nn.Linear(96, 40)
    with torch.no_grad():
        linear.weight[3] *= 30  # a scale of the whole tensor would lose the other rows
    packed = int8_model(torch.nn.Sequential(linear), "cpu")[0].weight().dequantize()
    weight = linear.weight.detach()
    ours = round_weight(weight, parse_scheme("int8")).weight
    assert bool(((packed - ours).abs() <= 1.01 * weight.abs().amax(dim=1, keepdim=True) / 127).all())
    assert float((packed - weight).norm() / weight.norm()) < 0.01


def test_int4_layers_compute_with_weights_rounded_by_group():
    """Its product is that of the rounded weights, to bf16."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(256, 32).to(torch.bfloat16)
    x = torch.randn(5, 256, dtype=torch.bfloat16)
    ours = round_weight(linear.weight, parse_scheme("int4")).weight
    with torch.inference_mode():
        found = Int4Linear(linear, 128)(x).float()
    expected = x.float() @ ours.T + linear.bias.float()
    assert float((found - expected).norm() / expected.norm()) < 0.01


@pytest.mark.parametrize(("weights", "dtype"), [("int8", "fp32"), ("int4:64", "bf16")])
def test_a_profile_says_how_wide_its_weights_were(weights, dtype):
    """Provenance, note, and steps that run: decode, packed prefill, mixed and without a cache."""
    device, full, resolved = _check(options(weights=weights))
    assert (device, full) == ("cpu", dtype)
    setup = set_up(TINY, device, full, resolved)
    assert setup.provenance.weight_scheme == weights and setup.provenance.dtype == dtype
    assert any(note.startswith("weights: torch") for note in setup.notes)
    by_phase = {point.phase: point for point in setup.points}
    assert set(by_phase) == {"prefill", "decode", "mixed", "no_cache"}
    for point in by_phase.values():
        setup.stepper.prepare(point)
        setup.stepper.step()


def test_samples_of_other_weights_are_never_continued():
    """The partial file of fp32 is not that of int8."""
    setups = [set_up(TINY, "cpu", "fp32", options(weights=weights)) for weights in (None, "int8")]
    kept = [identity(setup.provenance, setup.points, options()) for setup in setups]
    assert setups[0].provenance.weight_scheme is None and kept[0] != kept[1]


def test_kv_heads_change_the_model_its_bytes_and_its_name():
    """25m with all 8 heads: four times the KV bytes of its own 2, in the tensors of the real cache."""
    source = with_kv_heads(find_model("25m"), 8)
    own = load_model_spec("25m")
    assert source.spec.kv_bytes_per_token("fp32") == 4 * own.kv_bytes_per_token("fp32")
    assert default_path(source, "cpu", "fp32", options()).name == "25m-kv8-cpu-fp32.json"
    setup = set_up(with_kv_heads(TINY, 2), "cpu", "fp32", options())
    assert setup.kv_bytes.measured == setup.kv_bytes.formula == 2 * TINY.spec.kv_bytes_per_token("fp32")
    assert setup.provenance.dimensions.num_kv_heads == 2


def test_own_heads_change_nothing_and_trained_weights_are_not_bent(tmp_path):
    """The same source; another shape has random weights."""
    trained = ModelSource(load_model_spec("tiny"), str(tmp_path), True)
    assert with_kv_heads(trained, None) is trained and with_kv_heads(trained, 1) is trained
    assert with_kv_heads(trained, 2) == ModelSource(trained.spec.with_kv_heads(2), None, False)
    with pytest.raises(ModelError, match=r"kv_heads: must divide the 2 attention heads of tiny \(got 3\)"):
        with_kv_heads(trained, 3)


def test_engines_of_their_own_are_not_quantized():
    """One sentence."""
    with pytest.raises(CalibrationError, match=r"weights: are quantized for bare forwards only \(got --engine"):
        _check(options(weights="int8", engine="transformers"))


@pytest.mark.parametrize(("weights", "scheme"), [("int4:128", "int4"), ("bf16", None), ("fp8", "fp8"), (None, None)])
def test_a_server_s_weights_are_what_it_is_said_to_run(weights, scheme):
    """Any scheme that memory is counted with, under its canonical name; none if that is the dtype."""
    asked = CalibrateOptions(
        model="qwen3-8b", url="http://127.0.0.1:8000", dtype="bf16", weights=weights, kv_heads=4, command="x"
    )
    told = _told(asked)
    assert told.weights == scheme
    address, spec = check_server(told)
    assert spec.num_kv_heads == 4
    words = command_of(address, told)
    assert ("--weights" in words) == (scheme is not None) and "--kv-heads 4" in words
    assert parse_address("http://127.0.0.1:8000").port == address.port


def test_a_copy_is_quantized_and_the_model_is_not():
    """int4 leaves the model that it was made from as it was."""
    model = build_model(TINY, "cpu", "fp32", "sdpa", 0)
    before = sum(float(parameter.sum()) for parameter in model.parameters())
    int4_model(model, "cpu")
    assert sum(float(parameter.sum()) for parameter in model.parameters()) == before
