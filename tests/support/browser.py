"""A Chromium of the system for tests of pages, and a page in it that keeps what the browser complains about.

Imported by tests that need both: where `playwright` or a Chromium is not installed, the module of the test is skipped.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium is installed", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


@contextmanager
def running_chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page of the site at `url`, and everything that the browser complained about."""

    def __init__(self, context: Any, url: str) -> None:
        self.page = context.new_page()
        self.url = url
        self.complaints: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def go(self, path: str) -> Any:
        self.page.goto(self.url + path)
        return self.page

    def log_in(self, token: str) -> None:
        """Into a platform."""
        self.page.goto(self.url)
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Log in").click()
        expect(self.page.get_by_role("heading", name="Runs")).to_be_visible()
