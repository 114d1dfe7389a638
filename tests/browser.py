"""A real browser for the tests of the report: the distribution's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESK, PHONE = (1280, 900), (360, 740)
DRAWN = 'html[data-charts="drawn"]'  # a selector: the page's policy forbids evaluating a waiting expression


def missing() -> str | None:
    """Why no browser can be driven here, None where one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "Playwright is not installed"
    return None if executable() else f"no browser on the PATH ({', '.join(NAMES)})"


def executable() -> str | None:
    """Path of the browser."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


needed = pytest.mark.skipif(
    missing() is not None,
    reason=f"looks at pages as a reader would, in a browser, and {missing()}; `make test` installs Playwright, and the "
    "browser is the system's Chromium or Chrome",
)


@dataclass
class Visit:
    """An open page, and what it did that a report must not: messages, requests, dialogs."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)


@contextmanager
def launched() -> Iterator[Any]:
    """A headless browser, closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(browser: Any, path: Path, size: tuple[int, int] = DESK, dark: bool = False) -> Iterator[Visit]:
    """A report opened from its file, all charts drawn. The context is offline: it could not load anything."""
    width, height = size
    scheme = "dark" if dark else "light"
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        reduced_motion="reduce",  # no smooth scrolling: positions hold as soon as they are read
        offline=True,
    )
    page = context.new_page()
    seen = Visit(page)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
    try:
        page.goto(path.resolve().as_uri())
        page.wait_for_selector(DRAWN, state="attached", timeout=60_000)
        yield seen
    finally:
        context.close()
