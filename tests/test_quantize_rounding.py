"""Rounding of weights: levels computed by hand, laws for any matrix, and what theory says of known distributions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special

from calibrate.errors import CalibrationError
from calibrate.model import ModelSource, build_model, find_model
from calibrate.quantize.document import method_of, scheme_row
from calibrate.quantize.matrices import projections, require_finite, rounded
from calibrate.quantize.rounding import NF4_LEVELS, round_weight
from calibrate.quantize.subject import build
from simserve.memory.schemes import parse_scheme
from simserve.model_spec import load_model_spec

SCHEMES = ("int8:tensor", "int8", "int8:128", "int4:tensor", "int4:row", "int4", "int4:2", "nf4", "nf4:3")


def restored(rows, scheme):
    return round_weight(torch.tensor(rows), parse_scheme(scheme)).weight.tolist()


def relative_error(weight, scheme):
    kept = weight.detach()
    return float((kept - round_weight(kept, parse_scheme(scheme)).weight).norm() / kept.norm())


@pytest.mark.parametrize(
    ("rows", "scheme", "expected"),
    [
        # The largest of those that share a scale is the outermost level; here the scale is 1, and 2.5 goes to even.
        ([[7.0, -3.4, 2.5, 0.2]], "int4:tensor", [[7.0, -3.0, 2.0, 0.0]]),
        ([[127.0, -126.4, 0.6, 0.4]], "int8:tensor", [[127.0, -126.0, 1.0, 0.0]]),
        # One scale for both rows loses the second; a scale per row keeps it.
        ([[7.0, 3.0], [0.4, -0.4]], "int4:tensor", [[7.0, 3.0], [0.0, 0.0]]),
        ([[7.0, 3.0], [0.4375, -0.125]], "int4:row", [[7.0, 3.0], [0.4375, -0.125]]),
        # Groups of two within a row: scales 1 and 1/16.
        ([[7.0, 3.3, 0.4375, 0.13]], "int4:2", [[7.0, 3.0, 0.4375, 0.125]]),
        # A last group that is shorter has a scale of its own.
        ([[7.0, 3.3, 0.4375]], "int4:2", [[7.0, 3.0, 0.4375]]),
    ],
)
def test_levels_by_hand(rows, scheme, expected):
    """Symmetric absmax, computed on paper."""
    assert restored(rows, scheme) == expected


def test_nf4_takes_the_nearest_of_its_levels():
    """0.5 lies below the middle of 0.4407 and 0.5626 (0.50166), 0.51 above; −2 is the outermost."""
    found = restored([[-2.0, 1.0, 1.02, 0.16, 0.0]], "nf4")[0]
    levels = [-1.0, 0.44070982933044434, 0.5626170039176941, 0.07958029955625534, 0.0]
    assert found == pytest.approx([2 * level for level in levels])


def test_nf4_levels_are_the_published_quantiles():
    """Appendix E of the QLoRA paper: the mean of quantiles of both sides, normalised; recomputed here from the normal
    distribution with its offset, to 1e-4."""
    offset = 0.9677083  # the paper's code: halfway between 1 − 1/32 and 1 − 1/30

    def side(number):
        edges = [offset + (0.5 - offset) * i / (number - 1) for i in range(number)]
        return [special.ndtri(edge) for edge in edges[:-1]]

    positive, negative = side(9), side(8)
    levels = sorted([*positive, 0.0, *(-value for value in negative)])
    largest = max(levels)
    assert [level / largest for level in levels] == pytest.approx(NF4_LEVELS, abs=1e-4)


@pytest.mark.parametrize(
    ("scheme", "shape", "bits"),
    [
        ("int4", (3, 256), 3 * 256 * 4 + 6 * 16),  # 4.125 a weight
        ("int4", (3, 130), 3 * 130 * 4 + 6 * 16),  # a last group of two has a scale too
        ("nf4", (2, 128), 2 * 128 * 4 + 4 * 16),  # 4.25
        ("int8", (5, 96), 5 * 96 * 8 + 5 * 16),
        ("int4:tensor", (5, 96), 5 * 96 * 4 + 16),
    ],
)
def test_bits_count_every_scale(scheme, shape, bits):
    """Levels, and 16 bits for each scale."""
    assert round_weight(torch.ones(shape), parse_scheme(scheme)).num_bits == bits


@pytest.mark.parametrize("scheme", ["int8:128", "int4", "int4:64", "int4:32", "nf4"])
def test_bits_are_those_that_memory_is_counted_with(scheme):
    """``simserve memory`` and the rounding agree where groups are whole."""
    weight = torch.ones((8, 256))
    found = round_weight(weight, parse_scheme(scheme)).num_bits / weight.numel()
    assert found == parse_scheme(scheme).bits_per_weight


matrices = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.lists(st.floats(-100, 100, width=32), min_size=width, max_size=width), min_size=1, max_size=4
    )
)


@settings(max_examples=60, deadline=None)
@given(rows=matrices, scheme=st.sampled_from(SCHEMES))
def test_rounding_twice_is_rounding_once_and_signs_do_not_matter(rows, scheme):
    """Levels stay levels (to the last fp16 digit of a scale), and −W is rounded to −Ŵ where levels are symmetric."""
    weight = torch.tensor(rows)
    once = round_weight(weight, parse_scheme(scheme)).weight
    assert once.shape == weight.shape and bool(once.isfinite().all())
    twice = round_weight(once, parse_scheme(scheme)).weight
    assert torch.allclose(once, twice, rtol=2e-3, atol=1e-6)
    if not scheme.startswith("nf4"):
        assert torch.equal(round_weight(-weight, parse_scheme(scheme)).weight, -once)


@settings(max_examples=60, deadline=None)
@given(rows=matrices, bits=st.sampled_from([4, 8]))
def test_no_weight_moves_further_than_half_a_step(rows, bits):
    """A step is the row's largest over 7 or 127; the scale in fp16 adds a 2,048th of the weight, or what fp16 cannot
    say."""
    weight = torch.tensor(rows)
    moved = (weight - round_weight(weight, parse_scheme(f"int{bits}:row")).weight).abs()
    largest = weight.abs().amax(dim=1, keepdim=True)
    step = largest / (2 ** (bits - 1) - 1)
    assert bool((moved <= step / 2 + largest / 1000 + 2**-24 * 128).all())


@pytest.mark.parametrize(("scheme", "error"), [("int4:tensor", 1 / 14), ("int8:tensor", 1 / 254)])
def test_uniform_weights_lose_half_a_step(scheme, error):
    """Uniform on ±1: an error of step/√12 over 1/√3 is half a step of 1/7 or 1/127."""
    weight = torch.rand((512, 512), generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert relative_error(weight, scheme) == pytest.approx(error, rel=0.01)


@pytest.mark.parametrize("group", [32, 128])
def test_normal_weights_lose_what_the_largest_of_a_group_costs(group):
    """Normal weights: the mean square error is a twelfth of the square of a step, and a step is a seventh of the
    largest of the group; E[max²] = ∫ 2x (1 − F(x)ⁿ) dx with F of |x|."""
    weight = torch.randn((1024, 1024), generator=torch.Generator().manual_seed(0))
    square, _ = integrate.quad(lambda x: 2 * x * (1 - special.erf(x / math.sqrt(2)) ** group), 0, 12)
    assert relative_error(weight, f"int4:{group}") == pytest.approx(math.sqrt(square / 49 / 12), rel=0.02)


def test_one_outlier_ruins_its_tensor_its_row_or_its_group():
    """A weight of forty standard deviations: the smaller the share of weights that have its scale, the less is lost."""
    weight = torch.randn((256, 512), generator=torch.Generator().manual_seed(0))
    weight[3, 5] = 40.0
    rest = torch.ones_like(weight, dtype=torch.bool)
    rest[3, 5] = False
    errors = [
        float((weight - round_weight(weight, parse_scheme(scheme)).weight)[rest].norm() / weight[rest].norm())
        for scheme in ("int4:tensor", "int4:row", "int4", "nf4")
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.9 and errors[1] < 0.2 and errors[3] < 0.1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_and_next_to_nothing_stay_finite(scheme):
    """Zeros stay zeros; what fp16 cannot scale becomes zero and not NaN."""
    assert restored([[0.0, 0.0], [0.0, 0.0]], scheme) == [[0.0, 0.0], [0.0, 0.0]]
    assert restored([[1e-12, -1e-12]], scheme) == [[0.0, 0.0]]


@pytest.mark.parametrize("scheme", ["fp16", "fp8", "4.5"])
def test_a_scheme_without_levels_is_refused(scheme):
    """One sentence that names those that have some."""
    with pytest.raises(CalibrationError, match=r"int8, int4 or nf4.*got"):
        round_weight(torch.ones(2, 2), parse_scheme(scheme))


def test_only_matrices_are_rounded():
    """A bias is none."""
    with pytest.raises(CalibrationError, match=r"must be a matrix \(got the shape \(3,\)\)"):
        round_weight(torch.ones(3), parse_scheme("int8"))


@pytest.fixture(scope="module")
def tiny():
    return build_model(ModelSource(load_model_spec("tiny"), None, False), "cpu", "fp32", "sdpa", 0)


@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused(name, number):
    """A damaged file in one sentence that says where, whether that matrix is rounded or not."""
    model = build_model(ModelSource(load_model_spec("tiny"), None, False), "cpu", "fp32", "sdpa", 0)
    dict(model.named_parameters())[name].data[3, 4] = number
    with pytest.raises(CalibrationError, match=f"weights: must be finite numbers .got NaN or infinity in {name}"):
        require_finite(model)


def test_a_damaged_file_is_refused_where_it_is_read(tmp_path):
    """By quantize and agreement alike."""
    source = ModelSource(load_model_spec("tiny"), None, False)
    model = build_model(source, "cpu", "fp32", "sdpa", 0)
    model.model.norm.weight.data[0] = math.nan
    model.save_pretrained(tmp_path / "mine")
    with pytest.raises(CalibrationError, match=r"NaN or infinity in model\.norm\.weight"):
        build(find_model(str(tmp_path / "mine")), "fp32", 0)


def test_projections_are_seven_a_layer_without_the_head(tiny):
    """Two layers of q, k, v, o, gate, up and down: the formula's weights, and no output head."""
    found = projections(tiny)
    assert len(found) == 14 and "lm_head" not in found
    assert sum(linear.weight.numel() for linear in found.values()) == load_model_spec("tiny").matmul_parameters


def test_a_rounded_model_computes_with_rounded_weights_and_gets_its_own_back(tiny):
    """Inside, each weight is what the rounding says; outside, what it was, also after an error."""
    before = {name: linear.weight.clone() for name, linear in projections(tiny).items()}
    with pytest.raises(RuntimeError, match="stop"), rounded(tiny, parse_scheme("int4:tensor")) as errors:
        for name, linear in projections(tiny).items():
            assert torch.equal(linear.weight, round_weight(before[name], parse_scheme("int4:tensor")).weight)
        raise RuntimeError("stop")
    assert all(torch.equal(linear.weight, before[name]) for name, linear in projections(tiny).items())
    by_name = {matrix.name: matrix.error for matrix in errors}
    for name, weight in before.items():
        assert by_name[name] == pytest.approx(relative_error(weight, "int4:tensor"), rel=1e-5)


def test_a_row_of_the_table_is_the_mean_and_the_worst(tiny):
    """Mean over matrices, worst by name, bits over all weights."""
    scheme = parse_scheme("int4:row")
    with rounded(tiny, scheme) as errors:
        row = scheme_row(scheme, errors, None)
    assert row.mean_error == pytest.approx(sum(matrix.error for matrix in errors) / 14)
    assert row.worst_error == max(matrix.error for matrix in errors)
    assert [matrix.error for matrix in errors if matrix.name == row.worst_matrix] == [row.worst_error]
    num_rows = 2 * (64 + 32 + 32 + 64 + 128 + 128 + 64)
    assert row.bits_per_weight == pytest.approx(4 + 16 * num_rows / load_model_spec("tiny").matmul_parameters)


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("int8", "symmetric absmax, 255 levels, a scale per row"),
        ("int4:tensor", "symmetric absmax, 15 levels, a scale per tensor"),
        ("int4", "symmetric absmax, 15 levels, a scale per group of 128"),
        ("nf4", "NF4, 16 levels spaced as a normal distribution, a scale per group of 64"),
    ],
)
def test_methods_in_words(scheme, words):
    """What a reader needs to do it again."""
    assert method_of(parse_scheme(scheme)) == words
