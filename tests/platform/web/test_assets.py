"""Templates obey the content security policy; a login leads nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from osmosis.platform.web.session import safe_next
from osmosis.platform.web.templating import HERE

TEMPLATES = sorted((HERE / "templates").glob("*.html"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_need_no_inline_script_or_style(path: Path) -> None:
    text = path.read_text()
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
