"""Pages about weights and drafts: every figure of their files, what cannot be told is said, and a ruin is drawn too."""

import re

import pytest

from simserve.errors import ProfileError
from simserve.report import report_on_quantization
from simserve.report.quality_page import render_quality_page
from simserve.step_time.quality_schema import DraftAgreement, Quantization
from tests import browser
from tests.study_pages import check_chart, every_chart, head_of, text_of
from tests.test_report_page import EVIL, MEGABYTE

TEXT = {"name": "book.txt", "sha256": "ab" * 32, "num_tokens": 20_000}
SOFTWARE = {"simserve": "0.1", "torch": "2", "transformers": "5", "command": "simserve quantize small"}


def around(value, half=0.01):
    return {"value": value, "low": value * (1 - half), "high": value * (1 + half)}


def quality(perplexity, ratio, equal=144, half=0.01):
    """On 144 greedy tokens of 16 answers, as the chapters have it."""
    return {
        "perplexity": around(perplexity),
        "perplexity_ratio": around(ratio, half),
        "accuracy": around(0.4),
        "accuracy_change": {"value": 0.0, "low": -0.01, "high": 0.01},
        "agreement": {"value": equal / 144, "low": 0.9 * equal / 144, "high": equal / 144},
        "num_equal_tokens": equal,
        "num_tokens": 144,
        "equal_answers": around(0.5),
        "num_equal_answers": 8,
        "num_answers": 16,
        "num_windows": 64,
    }


def row(scheme, bits, mean, worst, judged=None):
    return {
        "scheme": scheme, "method": "absmax", "bits_per_weight": bits, "mean_error": mean, "worst_error": worst,
        "worst_matrix": "model.layers.3.mlp.down_proj", "quality": judged,
    }  # fmt: skip


CHAPTERS = (
    row("int8", 8.02, 0.008, 0.01, quality(23.1, 1.001, 142)),
    row("int4:tensor", 4.0, 0.6, 0.99, quality(365e6, 365e6 / 23.08, 3)),
    row("int4:row", 4.02, 0.18, 0.3, quality(46.18, 2.0, 80)),
    row("int4", 4.125, 0.1323, 0.2, quality(31.08, 1.347, 100)),
    row("nf4", 4.25, 0.0952, 0.12, quality(24.55, 1.064, 126)),
)


def quantization(rows=CHAPTERS, trained=True, **more):
    """A file as ``simserve quantize`` writes it, with the chapters' figures."""
    made = {
        "schema_version": 1, "kind": "simserve quantization", "name": "small", "model": "small", "dtype": "fp32",
        "weights": "trained" if trained else "random", "seed": 0, "num_matrices": 168, "num_weights": 357_826_560,
        "text": TEXT if trained else None, "full_precision": quality(23.08, 1.0, half=0.0) if trained else None,
        "rows": tuple(rows), "note": None if trained else "random weights: quality cannot be measured",
        "software": SOFTWARE, "digest": "00",
    }  # fmt: skip
    return Quantization.model_validate({**made, **more})


def agreement(**more):
    """A file as ``simserve agreement`` writes it."""
    acceptance = (0.8, 0.75, 0.5)
    made = {
        "schema_version": 1, "kind": "simserve draft agreement", "name": "target-draft", "target": "models/target",
        "draft": "models/draft", "draft_tokens": 3, "acceptance": acceptance,
        "intervals": tuple({"value": a, "low": a - 0.1, "high": a + 0.1} for a in acceptance),
        "tried": (100, 80, 60), "accepted": (80, 60, 30), "agreement": around(0.7), "tokens_per_pass": around(2.7),
        "num_passes": 100, "num_answers": 16, "num_answer_tokens": 32, "draft_parameters": 1_000_000,
        "target_parameters": 9_000_000, "text": TEXT, "seed": 0, "software": SOFTWARE, "digest": "00",
    }  # fmt: skip
    return DraftAgreement.model_validate({**made, **more})


@pytest.fixture(scope="module")
def html():
    return render_quality_page(quantization())


def test_the_chapters_figures_stand_there(html):
    """Errors to four digits, bits with their scales, perplexities up to millions, 142 of 144 tokens."""
    text = text_of(html)
    for figure in ("0.1323", "0.0952", "4.125", "4.250", "365 million", "46.2", "31.1", "24.6", "142 of 144", "0.9900"):
        assert figure in text, figure


def test_the_headline_says_what_is_free_and_what_is_ruin(html):
    """int8's interval holds 1; the least and the largest perplexity are named."""
    words = text_of(head_of(html))
    assert "Perplexity 23.1 in full precision; int8 is not shown to differ." in words
    assert "int8 comes to 23.1 , int4:tensor to 365 million ." in words or "int4:tensor to 365 million" in words


def test_random_weights_say_that_quality_cannot_be_measured():
    """A badge, no column of quality, no section of answers; errors all the same."""
    page = render_quality_page(quantization([row("int4", 4.125, 0.1173, 0.1185)], trained=False))
    assert "random weights: quality cannot be measured" in head_of(page)
    assert 'id="answers"' not in page and "perplexity</th>" not in page and "0.1173" in page


@pytest.mark.parametrize("rows", [CHAPTERS, CHAPTERS[4:], CHAPTERS[:1]])
def test_every_chart_is_valid_vega_lite(rows):
    """The schema, for ratios near 1 and for a ruin of sixteen million."""
    for document in (quantization(rows), quantization(rows, trained=False), agreement()):
        for name, spec in every_chart(render_quality_page(document)):
            check_chart(name, spec)


def test_ratios_near_one_are_drawn_near_it_and_a_ruin_on_a_logarithmic_axis():
    """A hundredth can be seen where that is all there is; 16 million leave no room for it on a straight axis."""

    def domain(rows):
        spec = dict(every_chart(render_quality_page(quantization(rows))))["quantization-ratio"]
        scales = [layer["encoding"]["x"]["scale"] for layer in spec["layer"] if "scale" in layer["encoding"]["x"]]
        return scales[0]["type"], *scales[0]["domain"]

    kind, low, high = domain(CHAPTERS[4:])
    assert kind == "linear" and 0.9 < low < 1 and 1.064 < high < 1.2
    kind, low, high = domain(CHAPTERS)
    assert kind == "log" and low < 1 and high > 365e6 / 23.08


def test_a_draft_s_page_has_its_positions_and_what_they_would_gain():
    """By hand: 1 + 0.8 + 0.6 + 0.3 = 2.7 tokens with three drafts; at a tenth of a step each 2.7 / 1.3 = 2.08×."""
    text = text_of(render_quality_page(agreement()))
    assert "draft drafts for target" in text
    assert "80.0 % (70.0 % to 90.0 %)" in text or "80 % (70 % to 90 %)" in text
    assert "2.70" in text and "2.08×" in text and "1,000,000 of 9,000,000 parameters" in text


def test_pages_depend_on_their_document_alone_and_stay_small(html):
    """The same bytes again, under 2 MB."""
    assert render_quality_page(quantization()) == html
    assert len(html.encode()) < 2 * MEGABYTE


def test_names_with_html_in_them_are_text():
    """A model's and a text's name become no markup."""
    for page in (render_quality_page(quantization(name=EVIL)), render_quality_page(agreement(draft=EVIL, name=EVIL))):
        assert "<img" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)


def test_a_file_that_was_changed_gets_no_page(tmp_path):
    """One sentence, and nothing beside it."""
    path = tmp_path / "small.quantization.json"
    path.write_text(quantization().model_dump_json(), encoding="utf-8")
    with pytest.raises(ProfileError, match="changed after it was measured"):
        report_on_quantization(path)
    assert list(tmp_path.iterdir()) == [path]


@browser.needed
@pytest.mark.parametrize("document", [quantization(), agreement()])
def test_in_a_browser_everything_is_drawn_on_a_phone_too(document, tmp_path):
    """Silent, dots in every chart, no wider than the screen."""
    path = tmp_path / "page.html"
    path.write_text(render_quality_page(document), encoding="utf-8")
    with browser.launched() as chromium, browser.visit(chromium, path, browser.PHONE, dark=True) as visit:
        assert visit.complaints == []
        assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= 360
        for box in visit.page.query_selector_all("[data-chart]"):
            assert box.query_selector(".mark-symbol path")
