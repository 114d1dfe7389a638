"""The page of a calibration: what it says follows from the profile, it is whole, small and safe, for any profile."""

import json
import random
import re
import time

import altair as alt
import numpy as np
import pytest

from calibrate.grid import Point
from calibrate.measure import Measurement
from calibrate.profile_file import assemble
from simserve.errors import OutputError, ProfileError
from simserve.model_spec import load_model_spec
from simserve.report import render_calibration, report_on_profile
from simserve.report.calibration import render_calibration_page
from simserve.report.calibration_content import calibration_content
from simserve.report.calibration_data import held_out_steps, point_frame, sample_frame
from simserve.report.calibration_noise import drift, typical_spread
from simserve.report.page import vega_bundle
from simserve.step_time.profile_schema import PROFILES_DIR, KvBytes, load_profile, shipped_profiles
from tests.profile_builders import make_point, make_profile, make_provenance, make_sample
from tests.test_report_page import EVIL, MEGABYTE, charts_of

SHIPPED = "25m-cpu-fp32"


@pytest.fixture(scope="module")
def profile():
    return load_profile(SHIPPED)


@pytest.fixture(scope="module")
def html(profile):
    return render_calibration_page(profile)


def with_samples(profile, change):
    """The profile with every sample changed by a function of (index, sample)."""
    changed = [sample.model_copy(update=change(i, sample)) for i, sample in enumerate(profile.samples)]
    return profile.model_copy(update={"samples": tuple(changed)})


@pytest.fixture(scope="module")
def plain(profile):
    """The same with nothing but undisturbed samples of the tables' own cells: no anchors, no second session."""
    cells = [
        sample
        for sample in profile.samples
        if sample.phase in ("prefill", "decode") and sample.shape[4:] == (0, 0, 0.0)
        if not (sample.session or sample.anchor or sample.held_out)
        if sample.phase == "decode" or sample.batch_size == 1
    ]
    random.Random(0).shuffle(cells)  # as in a run without refinement, whose points are all visited from first to last
    clean = (s.model_copy(update={"dirty": False, "order": i}) for i, s in enumerate(cells))
    return profile.model_copy(update={"samples": tuple(clean)})


def section(html, name):
    """The text of one section, tags left out."""
    inside = re.search(rf'<section id="{name}".*?</section>', html, re.S)[0]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", inside)).replace("\u00a0", " ")


def test_the_page_is_whole(html, profile):
    """Language, title, every section in its order, and who measured on what."""
    assert html.lstrip().startswith("<!doctype html>") and html.rstrip().endswith("</html>")
    assert f"<title>{SHIPPED} – simserve calibration</title>" in html
    wanted = ["summary", "decode", "prefill", "batch", "error", "noise", "kv", "points", "notes", "provenance"]
    assert re.findall(r'<section id="([\w-]+)"', html) == wanted
    text = section(html, "provenance")
    for value in (profile.digest, profile.provenance.device_name, profile.provenance.torch_version):
        assert value in text


def test_every_chart_has_its_place_its_words_and_valid_vega_lite(html):
    """Each embedded chart is drawn by one box with a text alternative, and holds to the schema."""
    boxes = re.findall(r'role="img" aria-label="([^"]+)" data-chart="([\w-]+)"', html)
    specs = charts_of(html)["specs"]
    assert sorted(name for _, name in boxes) == sorted(specs) and len(specs) == 12
    assert all(len(label) > 60 for label, _ in boxes)
    for spec in specs.values():
        alt.Chart.from_dict(spec, validate=True)


def test_the_page_is_small_and_quick(profile):
    """Every profile that ships: under 3 MB and, the shared script apart, under 3 s of CPU."""
    vega_bundle()
    for name in shipped_profiles():
        began = time.process_time()
        assert len(render_calibration_page(load_profile(name)).encode()) < 3 * MEGABYTE
        assert time.process_time() - began < 3


def test_fifty_thousand_samples_stay_small(profile):
    """A hundred times the samples: charts are thinned, the page still is under 3 MB."""
    many = profile.model_copy(update={"samples": profile.samples * 100})
    html = render_calibration_page(many)
    assert len(html.encode()) < 3 * MEGABYTE
    rows = [len(data) for spec in charts_of(html)["specs"].values() for data in spec["datasets"].values()]
    assert max(rows) <= 1500


def test_held_out_steps_are_those_of_the_profile_s_own_check(profile):
    """The same points and the same mean and largest error as calibration wrote into the profile."""
    points = point_frame(sample_frame(profile))
    errors = [abs(step.error) for step in held_out_steps(profile, points)]
    stated = profile.held_out.all
    assert len(errors) == stated.num_points
    assert np.mean(errors) == pytest.approx(stated.mean, rel=1e-9)
    assert max(errors) == pytest.approx(stated.max, rel=1e-9)


def test_steps_of_every_kind_are_predicted_as_the_profile_s_check_does():
    """Mixed, packed and unequal steps held out, measured again in a second session, and an anchor: same errors as those
    written into the profile, from the first session alone."""
    points = [make_point(*cell) for cell in _grid()]
    points += [Point("mixed", 1, new, 0, False, decodes, 128) for new in (16, 64) for decodes in (2, 8)]
    held = [Point("mixed", 1, 32, 0, True, 4, 200), Point("prefill", 3, 20, 0, True)]
    held += [Point("decode", 6, 1, 300, True, 0, 0, 0.75), Point("decode", 3, 1, 77, True)]
    samples = [_sample(point, 2e-3 + 1e-5 * i, i) for i, point in enumerate(points + held)]
    samples += [_sample(point, 9e-3, len(samples) + i, session=1) for i, point in enumerate(held)]
    samples += [_sample(points[0], 8e-3, len(samples), anchor=True)]
    spec = load_model_spec("tiny")
    kv = KvBytes(measured=spec.kv_bytes_per_token("fp32"), formula=spec.kv_bytes_per_token("fp32"))
    profile, _text = assemble("x", make_provenance(spec), kv, Measurement(samples), 1.0)
    errors = [abs(step.error) for step in held_out_steps(profile, point_frame(sample_frame(profile)))]
    assert len(errors) == profile.held_out.all.num_points == 4
    assert np.mean(errors) == pytest.approx(profile.held_out.all.mean, rel=1e-9)
    html = render_calibration_page(profile)
    assert "measured again" in section(html, "noise") and "beside 4 decodes" in section(html, "points")


def _grid():
    prefill = [("prefill", row, context) for row in (1, 16, 64) for context in (0, 256)]
    return prefill + [("decode", row, context) for row in (1, 4, 16) for context in (1, 512)]


def _sample(point, seconds, order, **more):
    beside = {name: getattr(point, name) for name in ("num_decodes", "num_decode_context_tokens", "context_spread")}
    return make_sample(point, seconds, order=order).model_copy(update={**beside, **more})


def test_a_formula_is_predicted_where_it_is_linear():
    """Seconds affine in rows and in context lie on the table's planes: every held-out step is predicted exactly."""
    flat = make_profile(lambda row, context: 1e-3 + 1e-5 * row, lambda row, context: 2e-3 + 1e-4 * row + 1e-6 * context)
    steps = held_out_steps(flat, point_frame(sample_frame(flat)))
    assert {step.phase for step in steps} == {"prefill", "decode"}
    assert all(abs(step.error) < 1e-12 for step in steps)


def test_a_disturbed_sample_counts_in_no_median_but_is_drawn(plain):
    """One sample of each point made ten times slower and dirty: medians stand, and crosses show it."""
    first = {}
    for i, sample in enumerate(plain.samples):
        first.setdefault((sample.phase, sample.batch_size, sample.num_new_tokens, sample.num_context_tokens), i)
    spoiled = set(first.values())
    changed = with_samples(
        plain, lambda i, s: {"cpu_s": 10 * s.cpu_s, "wall_s": 10 * s.wall_s, "dirty": True} if i in spoiled else {}
    )
    before, after = point_frame(sample_frame(plain)), point_frame(sample_frame(changed))
    assert np.median(after["median_s"] / before["median_s"]) == pytest.approx(1.0, abs=0.02)
    assert (after["num_dirty"] == 1).all()
    specs = charts_of(render_calibration_page(changed))["specs"]
    for name in ("noise-order", "surface-profile-context", "batch-throughput"):
        assert '"disturbed"' in json.dumps(specs[name]) or '"state": true' in json.dumps(specs[name]), name


def test_disturbance_is_said_before_everything_else(plain):
    """No clean sample at any point: a badge above the summary says so."""
    html = render_calibration_page(with_samples(plain, lambda i, s: {"dirty": True}))
    head = html[html.index("<body>") : html.index("<main")]
    count = len(point_frame(sample_frame(plain)))
    assert "disturbed</strong>" in head and f"during every sample of {count} points of {count}" in head


def test_drift_is_the_shift_between_the_run_s_ends(plain):
    """Samples that grow by 20 % over the run in random order of points show a drift of about 15 % between quarters."""
    last = max(sample.order for sample in plain.samples)
    seconds = 0.01
    slower = with_samples(plain, lambda i, s: {"cpu_s": seconds * (1 + 0.2 * s.order / last), "wall_s": seconds})
    steady = with_samples(plain, lambda i, s: {"cpu_s": seconds, "wall_s": seconds})
    assert drift(sample_frame(slower)) == pytest.approx(0.15 / 1.1, abs=0.03)
    assert drift(sample_frame(steady)) == 0.0


def test_spread_is_the_coefficient_of_variation(profile):
    """Samples 1, 2, 3 of a point have mean 2 and standard deviation 1: a half."""
    counts = {}

    def change(_i, sample):
        key = sample.phase, sample.batch_size, sample.num_new_tokens, sample.num_context_tokens
        counts[key] = counts.get(key, 0) + 1
        return {"cpu_s": float(counts[key]), "wall_s": 1.0, "dirty": counts[key] > 3}

    points = point_frame(sample_frame(with_samples(profile, change)))
    assert typical_spread(points) == pytest.approx(0.5)


def test_the_clock_of_the_profile_is_the_one_that_counts(profile):
    """wall_s where the provenance says wall, CUDA events where it says so."""
    cuda = with_samples(profile, lambda i, s: {"cuda_s": 7.0})
    for clock, wanted in (("wall", [s.wall_s for s in profile.samples]), ("cuda_events", [7.0] * len(profile.samples))):
        made = profile.provenance.model_copy(update={"clock": clock})
        frame = sample_frame(cuda.model_copy(update={"provenance": made}))
        assert sorted(frame["seconds"]) == sorted(wanted)


def test_the_knee_and_its_interval_stand_in_words(html, profile):
    """The batch section names the profile's knee, what it gains, and the bootstrap's verdict."""
    text = section(html, "batch")
    assert f"knee is at batch {profile.batch_curve.knee}" in text and "bootstrap draws" in text
    assert "knee" in json.dumps(charts_of(html)["specs"]["batch-throughput"])


def test_captions_read_as_sentences(profile):
    """Time per token of the shortest and the longest prefill, each with its unit and a space before it."""
    figures = [figure for part in calibration_content(profile).sections for figure in part.figures]
    (caption,) = [figure.caption for figure in figures if figure.id == "prefill-per-token"]
    assert re.fullmatch(
        r"A prefill of 1 token costs [\d.]+ ms a token, one of 2,048 tokens [\d.]+ µs: [\d.]+× less\.",
        caption.replace("\u00a0", " "),
    )
    assert all(figure.caption.endswith(".") for figure in figures)


def test_kv_bytes_and_their_formula(html):
    """25m: 2 · 8 layers · 2 KV heads · 64 · 4 bytes = 8,192, in the tensors as by the formula."""
    assert section(html, "kv").count("8,192") == 2 and "2 · 8 · 2 · 64 · 4" in section(html, "kv")


def test_imported_figures_say_so(profile):
    """Origin, source and unknown fields: a badge, no invented machine, and dashes where nothing is known."""
    unknown = dict.fromkeys(("driver", "num_cpus", "threads", "attention", "kv_cache", "torch_version", "weights"))
    made = profile.provenance.model_copy(update={"origin": "imported", "source": "A paper, CC BY", **unknown})
    changed = profile.model_copy(
        update={"provenance": made, "kv_bytes_per_token": None, "samples": profile.samples[:1]}
    )
    html = render_calibration_page(changed)
    head = html[html.index("<body>") : html.index("<main")]
    assert "imported</strong>" in head and "A paper, CC BY" in head
    assert 'id="kv"' not in html and "None" not in re.sub(r"<script.*?</script>", "", html, flags=re.S)


def test_names_with_html_in_them_are_text(profile):
    """Name, model, device, notes and source can hold anything; none of it becomes markup."""
    texts = dict.fromkeys(("model", "device_name", "source", "command", "attention", "dtype"), EVIL)
    made = profile.provenance.model_copy(update={**texts, "notes": (EVIL,)})
    html = render_calibration_page(profile.model_copy(update={"provenance": made, "name": EVIL}))
    page = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert "<img" not in page and html.count("<script") == 3
    assert "&lt;img src=x onerror=alert(2)&gt;" in page and 'id="notes"' in page


def test_the_same_profile_gives_the_same_bytes_and_no_half_page(profile, html, tmp_path):
    """A page depends on the profile alone; a place that cannot be written is one sentence."""
    render_calibration(profile, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == html
    with pytest.raises(OutputError, match="cannot be written"):
        render_calibration(profile, tmp_path / "missing" / "a.html")


def test_the_headline_names_the_model_its_device_and_the_error(profile):
    """One sentence, with figures from the tables."""
    words = calibration_content(profile).headline.replace("\u00a0", " ")
    error = f"off by {100 * profile.held_out.all.mean:.1f} % on average"
    assert words.startswith("25m in fp32 on ") and error in words


def test_a_page_stands_beside_its_profile(tmp_path):
    """NAME.html beside NAME.json; the path that was asked for, where one was; tables of another model are left out."""
    path = tmp_path / "mine.json"
    path.write_text((PROFILES_DIR / f"{SHIPPED}.json").read_text(encoding="utf-8"), encoding="utf-8")
    assert report_on_profile(path) == tmp_path / "mine.html"
    assert report_on_profile(SHIPPED, tmp_path / "b.html") == tmp_path / "b.html"
    (tmp_path / "mine.chapters.json").write_text("{", encoding="utf-8")
    with pytest.raises(ProfileError, match=r"mine\.chapters\.json: is not a whole JSON file"):
        report_on_profile(path)


def test_smallest_profile_has_a_page():
    """One sample per point, held-out points or none: what there is to say is said."""
    html = render_calibration_page(make_profile())
    assert "noise-order" not in charts_of(html)["specs"] and 'id="error"' in html
    for spec in charts_of(html)["specs"].values():
        alt.Chart.from_dict(spec, validate=True)
