"""The style sheet as data: both themes complete, enough contrast to read, colours that survive colour blindness."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import simserve.report
from simserve.report.figure import clock_unit, time_x
from simserve.report.lines import grid_rows
from simserve.report.style import NUM_COLORS, vega_config

HERE = Path(simserve.report.__file__).parent
CSS = (HERE / "page.css").read_text(encoding="utf-8")
# How red- and green-blind eyes see linear RGB: Machado, Oliveira and Fernandes 2009, severity 1.0.
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)


def themes():
    """The custom properties of the light and of the dark theme."""
    light = re.search(r"^:root \{(.*?)^\}", CSS, re.S | re.M)[1]
    dark = re.search(r"prefers-color-scheme: dark\) \{\s*:root \{(.*?)\n  \}", CSS, re.S)[1]
    return {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text)) for name, text in (("light", light), ("dark", dark))
    }


THEMES = themes()


def linear(color):
    """A #rrggbb colour as linear RGB (sRGB's transfer function)."""
    values = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG 2's contrast ratio of two colours, 1 to 21."""
    lighter, darker = sorted((TO_XYZ[1] @ linear(color) for color in (one, other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def lab(rgb):
    """CIE L*a*b* of a linear RGB colour under D65."""
    ratios = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(ratios > 216 / 24389, np.cbrt(ratios), (24389 / 27 * ratios + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_both_themes_define_the_same_colours():
    """A colour that only one theme knows would leave a chart invisible in the other."""
    assert THEMES["light"].keys() == THEMES["dark"].keys()
    assert {f"c{i}" for i in range(NUM_COLORS)} | {f"s{i}" for i in range(6)} <= THEMES["light"].keys()


def test_every_colour_that_is_used_is_defined():
    """No var(--name) in code, template or style sheet points nowhere."""
    sources = [*HERE.glob("*.py"), *HERE.glob("*.j2"), *HERE.glob("*.css")]
    used = {name for path in sources for name in re.findall(r"var\(--([\w-]+)\)", path.read_text(encoding="utf-8"))}
    assert used - THEMES["light"].keys() <= {"variants"}


def test_every_fill_pattern_that_is_used_is_drawn():
    """url(#hatch-…) in a chart has its pattern in the page."""
    used = {n for path in HERE.glob("*.py") for n in re.findall(r"url\(#([\w-]+)\)", path.read_text(encoding="utf-8"))}
    template = (HERE / "frame.html.j2").read_text(encoding="utf-8")
    assert used - {"hatch"} == set(re.findall(r'<pattern id="([\w-]+)"', template))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", ["ground", "surface"])
@pytest.mark.parametrize("ink", ["ink", "ink-soft", "link"])
def test_text_is_readable(theme, ground, ink):
    """WCAG AA: 4.5 to 1 for text."""
    assert contrast(THEMES[theme][ink], THEMES[theme][ground]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    ("ink", "ground"), [("mark-ink", "mark"), ("warn", "warn-back"), ("slot-label", "slot-decode")]
)
def test_text_on_colour_is_readable(theme, ink, ground):
    """The best cell, a warning, a request's number on its bar."""
    assert contrast(THEMES[theme][ink], THEMES[theme][ground]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("i", range(NUM_COLORS))
def test_lines_stand_out_from_the_page(theme, i):
    """WCAG AA for graphics: 3 to 1."""
    assert contrast(THEMES[theme][f"c{i}"], THEMES[theme]["surface"]) >= 3


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("eyes", ["normal", *BLINDNESS])
def test_the_first_four_colours_differ_to_colour_blind_eyes_too(theme, eyes):
    """ΔE (CIE 1976) of at least 15 between any two of them: far more than the 2.3 that is just noticeable."""
    matrix = np.array(BLINDNESS.get(eyes, np.eye(3)))
    seen = [lab(matrix @ linear(THEMES[theme][f"c{i}"])) for i in range(4)]
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(one - other) >= 15


@pytest.mark.parametrize("theme", THEMES)
def test_the_order_of_curves_is_readable_without_hue(theme):
    """Step-time curves go from faint to strong: contrast with the page rises from one to the next."""
    contrasts = [contrast(THEMES[theme][f"s{i}"], THEMES[theme]["surface"]) for i in range(6)]
    assert contrasts == sorted(contrasts)


def test_the_theme_of_charts_has_no_colour_of_its_own():
    """All colours are the page's variables, so that light, dark and print need no second drawing."""
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b", str(vega_config()))


@pytest.mark.parametrize(
    ("end_s", "unit"), [(5.0, "duration"), (599.0, "duration"), (3504.0, "minutes"), (90_000.0, "hours")]
)
def test_points_in_time_share_one_unit(end_s, unit):
    """Seconds up to ten minutes, minutes up to two hours, then hours; ticks inside the run."""
    assert clock_unit(end_s)[0] == unit
    axis = time_x("t", end_s).to_dict()["axis"]
    assert axis["formatType"] == unit and 3 <= len(axis["values"]) <= 7 and max(axis["values"]) <= end_s


def test_a_row_leaves_out_what_is_not_there():
    """A variant that has ended has no key in the row: a line stops instead of falling to zero."""
    rows = grid_rows("t", np.array([0.5, 1.5]), {"v0": np.array([1.0, np.nan]), "v1": np.array([2.0, 3.0])})
    assert rows == [{"t": 0.5, "v0": 1.0, "v1": 2.0}, {"t": 1.5, "v1": 3.0}]
