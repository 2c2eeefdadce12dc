from __future__ import annotations

import base64
import html
import json
import shlex
import textwrap
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


HARD = "a'b<&>\\" + '"/ü$x+ key-0123456789'
WRITTEN = {
    "repr": repr(HARD)[1:-1],
    "JSON twice": json.dumps(json.dumps({"k": HARD})),
    "HTML": html.escape(HARD),
    "HTML of templates": html.escape(HARD).replace("&#x27;", "&#39;"),
    "HTML text": html.escape(HARD, quote=False),
    "a shell word": shlex.quote(HARD),
    "hexadecimal": HARD.encode().hex(),
    "HEXADECIMAL": HARD.encode().hex().upper(),
    "percent": quote(HARD, safe="").lower(),
    "base32": base64.b32encode(b"xy" + HARD.encode()).decode(),
    "base64 twice": base64.b64encode(base64.b64encode(HARD.encode())).decode(),
    "base64 in lines": "\n".join(textwrap.wrap(base64.b64encode(b"x" * 50 + HARD.encode() + b"yz").decode(), 20)),
    "base64 in lines, in JSON": json.dumps(base64.encodebytes(b"x" * 50 + HARD.encode() + b"y" * 9).decode()),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_a_value_is_found_however_it_is_written(form: str) -> None:
    redactor, written = Redactor([HARD]), WRITTEN[form]
    assert MARK in redactor.text(f"a {written} b"), written
    assert redactor.touches(f"a {written} b".encode()), written


PEM = """-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQEFAASC
  BKcwggSjAgEAAoIBAQC7
QQ==
-----END PRIVATE KEY-----
"""


def test_each_line_of_a_value_is_one() -> None:
    redactor = Redactor([PEM])
    for line in PEM.splitlines()[1:3]:
        assert redactor.text(f"key: {line.strip()}") == f"key: {MARK}"
        assert redactor.touches(base64.b64encode(line.strip().encode()))
    for line in ("-----BEGIN PRIVATE KEY-----", "QQ=="):
        assert redactor.text(line) == line, "in other files, too"
    assert redactor.text(f"[{PEM}]") == f"[{MARK}]"


def test_ordinary_text_stays() -> None:
    text = "The answer is 42. aGVsbG8gd29ybGQ= deadbeef %2F &amp; 'quoted' " * 50
    assert Redactor([HARD, PEM, SECRET]).text(text) == text


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
