from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from osmosis.base.redact import MARK, Redactor, without_credentials

SECRET = 'key/of "the" rollout+1'


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        quote(SECRET, safe=""),
        json.dumps(SECRET)[1:-1],
        *(base64.b64encode(b"x" * shift + SECRET.encode()).decode() for shift in range(3)),
    ],
)
def test_a_value_is_found_in_each_form(written: str) -> None:
    redactor = Redactor([SECRET])
    assert MARK in redactor.text(f"a {written} b")
    assert redactor.touches(f"a {written} b".encode())
    assert redactor.data({written: [written, 1]}).keys() != {written}


def test_short_and_empty_values_are_left_alone() -> None:
    redactor = Redactor(["", "abc"])
    assert not redactor
    assert redactor.text("abc") == "abc"
    assert not redactor.touches(b"abc")


def test_files_are_rewritten_where_they_lie(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "log").write_bytes(b"\xff key: " + SECRET.encode() + b"\n")
    (folder / "other").write_bytes(b"\xff nothing")
    outside = tmp_path / "outside"
    outside.write_text(SECRET)
    (folder / "link").symlink_to(outside)
    assert Redactor([SECRET]).files(folder) == 1
    assert (folder / "sub" / "log").read_bytes() == b"\xff key: [redacted]\n"
    assert outside.read_text() == SECRET


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("fatal: https://ann:pw@host/a.git failed", "fatal: https://host/a.git failed"),
        ("https://ann:p@ss@host/a and http://t@b", "https://host/a and http://b"),
        ("ssh://git@host/a", "ssh://host/a"),
        ("mail ann@host stays", "mail ann@host stays"),
        ("https://host/@scope/x stays", "https://host/@scope/x stays"),
    ],
)
def test_credentials_of_urls(text: str, clean: str) -> None:
    assert without_credentials(text) == clean
