"""Signing in through an OpenID Connect provider in a real browser, which keeps our content security policy.

A terminal's login ends there, too.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from support.browser import Visit, expect, running_chromium
from support.openid_issuer import OpenIdIssuer, openid_issuer
from support.platform_app import RunningPlatform, running_platform

pytestmark = pytest.mark.browser


@pytest.fixture
def issuer() -> Iterator[OpenIdIssuer]:
    with openid_issuer() as running:
        running.asks = True
        yield running


@pytest.fixture
def platform(tmp_path: Path, issuer: OpenIdIssuer) -> Iterator[RunningPlatform]:
    environ = issuer.environ(NAME="Example", DOMAINS="example.com")
    with running_platform(tmp_path / "data", environ=environ) as running:
        yield running


def test_a_terminal_and_its_browser_log_in_and_out(platform: RunningPlatform, tmp_path: Path) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OSMOSIS_CONFIG_DIR": str(tmp_path / "config"),
        "OSMOSIS_DATA_DIR": str(tmp_path / "elsewhere"),  # no bootstrap token: as on another machine
        "OSMOSIS_PLATFORM_URL": platform.url,
    }
    login = subprocess.Popen(
        [sys.executable, "-m", "osmosis", "login", "--no-browser", "--store", "file"],
        env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        said = ""
        while not (found := re.search(r"(http\S+/device\S*)", said)):
            line = login.stdout.readline()
            assert line, said
            said += line
        with running_chromium() as chromium:
            visit = Visit(chromium.new_context(), platform.url)
            page = visit.page
            page.goto(found[1])
            page.get_by_role("link", name="Log in with Example").click()
            page.get_by_role("button", name="Continue as Ada").click()
            page.get_by_role("button", name="Approve").click()
            expect(page.get_by_role("status")).to_contain_text("approved")
            rest, _ = login.communicate(timeout=60)
            assert login.returncode == 0, rest
            with platform.parts.db.read() as session:
                made = session.scalars(sa.select(tables.Token).where(tables.Token.kind == "device")).all()
                assert "ada" in [token.user.handle for token in made]
            page.get_by_role("button", name="Log out").click()
            page.get_by_role("link", name="Log out of Example, too").click()
            expect(page.get_by_role("link", name="Log in with Example")).to_be_visible()
            assert visit.complaints == []
    finally:
        if login.poll() is None:
            login.kill()
            login.wait()
