"""A real browser, and what every test of the page has of it: no error, and no word to any other machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.waiting import HANG

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

BROWSER = Path(os.environ.get("SHOAL_BROWSER", "/usr/bin/chromium"))
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
OWN = ("blob:", "data:")
"""Addresses of what the page itself has made."""


@contextmanager
def browser() -> Iterator["sync_api.Browser"]:
    """The browser of this machine; skips the tests where there is none."""
    if not BROWSER.exists():
        pytest.skip(f"there is no browser at {BROWSER}; SHOAL_BROWSER may name another")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=str(BROWSER), args=list(FLAGS), timeout=1000 * HANG
        )
        try:
            yield found
        finally:
            found.close()


@dataclass
class Tab:
    """A tab on the page. problems: errors, violations of the content policy, dialogs, foreign requests."""

    page: "sync_api.Page"
    address: str
    problems: list[str] = field(default_factory=list)

    def show(self, view: str, text: str) -> None:
        """Go to a view, such as "fleet" or "run/flux", and wait until it shows this text."""
        self.page.evaluate("view => { location.hash = '#/' + view; }", view)
        self.sees(text)

    def notes(self, what: str, problem: bool) -> None:
        if problem:
            self.problems.append(what)

    def sees(self, text: str) -> None:
        """Wait until the page shows this text."""
        self.page.get_by_text(text).first.wait_for(state="attached")


@contextmanager
def tab(
    found: "sync_api.Browser", address: str, link: str, width: int = 1280, scheme: str = "light"
) -> Iterator[Tab]:
    """A tab that followed the link. At the end it must have had no problem."""
    context = found.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(1000 * HANG)
    page = context.new_page()
    opened = Tab(page, address)
    page.on("pageerror", lambda error: opened.problems.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (opened.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("console", lambda line: opened.notes(f"console: {line.text}", line.type == "error"))
    page.on("request", lambda each: opened.notes(each.url, not each.url.startswith((address, *OWN))))
    try:
        page.goto(link)
        page.wait_for_url(f"{address}/**")
        page.wait_for_selector("h1")
        yield opened
        assert opened.problems == []
    finally:
        context.close()
