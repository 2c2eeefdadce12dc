"""Templates obey the content security policy; a login leads nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from osmosis.platform.web.session import safe_next
from osmosis.platform.web.templating import FOLDER, mount_docs

TEMPLATES = sorted((FOLDER / "templates").glob("*.html"))


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


def test_documentation_that_was_not_built_is_a_page_that_says_how_to_read_it(tmp_path: Path) -> None:
    app = FastAPI(docs_url=None)
    mount_docs(app, tmp_path)
    for path in ("/docs", "/docs/", "/docs/tutorial.html"):
        answer = TestClient(app).get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "make docs-site" in answer.text
