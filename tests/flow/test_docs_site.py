"""The documentation as a site: it builds without a warning, no link is broken, and the platform shows it, offline."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from osmosis.platform.web.templating import mount_docs

pytestmark = pytest.mark.slow

TOP = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a broken link or anchor between pages ends the build."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environ = {"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1", "HOME": str(folder)}
    done = subprocess.run(command, cwd=TOP, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Loaded(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.found += [given["src"]] if given.get("src") else []
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "modulepreload"):
            self.found += [given["href"]] if given.get("href") else []


def test_every_page_is_in_the_navigation_and_loads_nothing_from_elsewhere(site: Path) -> None:
    written = {path.stem for path in (TOP / "docs").glob("*.md")}
    home = (site / "index.html").read_text()
    linked = set(re.findall(r'href="([a-z-]+)\.html"', home))
    assert written - {"index"} <= linked
    for page in site.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(page.read_text())
        assert [one for one in loaded.found if "//" in one] == [], page
    assert "evaluate_async" in (site / "api.html").read_text()


def test_the_platform_shows_it(site: Path) -> None:
    app = FastAPI()
    mount_docs(app, site)
    client = TestClient(app)
    page = client.get("/docs/tutorial.html")
    assert (page.status_code, "Ten minutes" in page.text) == (200, True)
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert client.get("/docs/../platform.db").status_code == 404
