"""Files of others are what they were when they were taken in; ours obey the content security policy."""

from __future__ import annotations

import hashlib
import re

import pytest

from osmosis.platform.web.render import HERE, STATIC
from osmosis.platform.web.session import safe_next

VENDOR = STATIC / "vendor"
TEMPLATES = sorted((HERE / "templates").glob("*.html"))


def test_vendored_files_are_unchanged() -> None:
    listed = dict(reversed(line.split()) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    there = {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS", "README.md"}
    assert set(listed) == there
    for name, digest in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_need_no_inline_script_or_style(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]
    assert not re.search(r"<script(?![^>]*\ssrc=)", text)
    assert not re.search(r"\s(on[a-z]+|style|hx-on[^=]*)=", text)
    assert "|safe" not in text
    assert not re.search(r"(src|href)=\"(https?:)?//", text)


@pytest.mark.parametrize(
    "page",
    ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:x", "", "x", "/a\nb", "/a\\b", None],
)
def test_a_login_leads_to_this_platform_only(page: str | None) -> None:
    assert safe_next(page) == "/"
    assert safe_next("/runs/x?at=2") == "/runs/x?at=2"
