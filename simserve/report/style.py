"""How charts look: one stable colour and dash per variant, and a Vega theme whose colours are the page's CSS variables.

Charts are drawn as inline SVG, where ``var(--ink)`` and ``url(#hatch)`` work as colours: light, dark and print follow
the style sheet without drawing anything again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

NUM_COLORS = 8  # page.css defines --c0 … --c7 for light and dark: Okabe and Ito's hues, with contrast of 3 or more
DASHES = ((1, 0), (8, 3), (2, 2), (9, 3, 2, 3), (4, 3), (14, 4), (6, 2, 2, 2, 2, 2), (1, 3))


@dataclass(frozen=True)
class VariantStyle:
    """A variant's name, its column in chart data, and how it is drawn wherever it shows."""

    name: str
    key: str
    color: str
    dash: tuple[int, ...]
    width: float

    @property
    def dash_array(self) -> str:
        """The dash as SVG writes it."""
        return " ".join(map(str, self.dash))


def variant_styles(names: Iterable[str]) -> list[VariantStyle]:
    """A style per variant, in order: the first eight differ in colour and in dash, the next 56 in one of the two.

    Later ones are thinner, so that of two that coincide both can be seen."""
    listed = list(names)
    widths = np.linspace(3.6, 1.8, len(listed)) if len(listed) > 1 else [2.25]
    return [
        VariantStyle(
            name,
            f"v{i}",
            f"var(--c{i % NUM_COLORS})",
            DASHES[(i + i // NUM_COLORS) % len(DASHES)],
            round(float(width), 2),
        )
        for i, (name, width) in enumerate(zip(listed, widths, strict=True))
    ]


def vega_config() -> dict[str, Any]:
    """The theme of every chart; embedded once in the page and merged into each chart when it is drawn."""
    axis = {
        "labelColor": "var(--ink-soft)",
        "titleColor": "var(--ink-soft)",
        "gridColor": "var(--grid)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titlePadding": 8,
        "labelOverlap": "greedy",
        "labelSeparation": 6,
        "labelFlush": False,
    }
    return {
        "background": "transparent",
        "customFormatTypes": True,
        "font": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
        "view": {"stroke": None},
        "axis": axis,
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False},
        "line": {"strokeJoin": "round"},
        "text": {"color": "var(--ink)", "fontSize": 12},
    }
