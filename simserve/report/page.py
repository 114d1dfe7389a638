"""The page: what goes where, and the one file that holds it all."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt
import jinja2
import vl_convert
from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from simserve.errors import OutputError
from simserve.report.cache import PARTS
from simserve.report.content import Section, page_content
from simserve.report.controls import for_script
from simserve.report.slots import FILLS
from simserve.report.style import vega_config

if TYPE_CHECKING:
    from simserve.simulate import RunResult

_HERE = Path(__file__).parent
_UNSAFE_IN_SCRIPT = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def write_page(result: RunResult, manifest: Mapping[str, Any], path: Path) -> None:
    """Write the page. Raises OutputError when the file cannot be written."""
    write_html(render_page(result, manifest), path)


def write_html(html: str, path: Path) -> None:
    """Write a page's text. Raises OutputError when the file cannot be written."""
    try:
        path.write_text(html, encoding="utf-8", newline="\n")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({(error.strerror or str(error)).lower()})") from None


def render_page(result: RunResult, manifest: Mapping[str, Any]) -> str:
    """The whole page as text."""
    with debug_mode(False):  # checking every chart against Vega-Lite's schema doubles the time; the tests do it
        content = page_content(result, manifest)
    return render_template(
        "page.html.j2",
        content.sections,
        content=content,
        kind="simserve report",
        headline=emphasised(content.headline, [style.name for style in content.styles]),
    )


def render_template(
    template: str, sections: Sequence[Section], tables: Mapping[str, Any] | None = None, **variables: object
) -> str:
    """A page of this house: the style sheet, one copy of Vega, the charts of ``sections``, and the policy that lets
    nothing else in. ``tables`` are data that charts share, by name, in columns; ``variables`` are what the template
    names."""
    specs = {figure.id: figure.spec for section in sections for figure in section.figures}
    charts: dict[str, Any] = {"config": vega_config(), "specs": specs}
    controls = {section.id: for_script(section.controls) for section in sections if section.controls}
    charts |= {key: value for key, value in (("tables", tables), ("controls", controls)) if value}
    scripts = [_inline(vega_bundle()), _inline((_HERE / "page.js").read_text(encoding="utf-8"))]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(
        **variables,
        parts=PARTS,
        slot_fills=FILLS,
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        charts=script_json(charts),
        scripts=[Markup(script) for script in scripts],
        policy=content_security_policy(scripts),
    )


@cache
def vega_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, of the Vega-Lite version that Altair writes for. Takes a second."""
    version = alt.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


def emphasised(sentence: str, names: list[str]) -> Markup:
    """The sentence as HTML, with the names of variants and the ratios in it in bold."""
    longest_first = [rf"(?<!\w){re.escape(name)}(?!\w)" for name in sorted(names, key=len, reverse=True)]
    parts = re.split("(" + "|".join([*longest_first, r"\d[\d.,]*×"]) + ")", sentence)
    return Markup("").join(Markup("<b>{}</b>").format(part) if i % 2 else part for i, part in enumerate(parts))


def script_json(value: object) -> Markup:
    """JSON that can stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.translate(_UNSAFE_IN_SCRIPT))


def content_security_policy(scripts: list[str]) -> str:
    """Nothing may be loaded or sent, no text may be evaluated, and only these very scripts run."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


def _inline(script: str) -> str:
    """A script that cannot end its own element (both escapes mean the same inside JavaScript strings), with the line
    ends that a browser will hash."""
    safe = script.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return f"\n{safe}\n"
