import base64
import html
import json
import os
import shlex
import textwrap
from pathlib import Path
from urllib.parse import quote

import pytest

from osmosis.base.redact import LARGEST_FILE, MARK, LineRedactor, Redactor, without_credentials

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
    "percent twice": quote(quote(HARD, safe=""), safe=""),
    "JSON three times": json.dumps(json.dumps(json.dumps({"k": HARD}))),
    "repr of bytes": repr(HARD.encode())[2:-1],
    "repr of bytes, in JSON": json.dumps(repr(HARD.encode())),
    "ASCII": ascii(HARD)[1:-1],
    "escaped bytes": "".join(f"\\x{byte:02x}" for byte in HARD.encode()),
    "escaped letters": "".join(f"\\u{ord(letter):04x}" for letter in HARD),
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


KEY = "sk-live-0123456789abcdef"


@pytest.mark.parametrize("cut", range(3, len(KEY) - 3, 4))
def test_a_value_that_is_split_over_two_lines_is_found(cut: int) -> None:
    stream = LineRedactor(Redactor([KEY]))
    shown = [*stream.lines("before"), *stream.lines(f"the key is {KEY[:cut]}"), *stream.lines(f"{KEY[cut:]} and on")]
    shown += [*stream.lines("after"), *stream.rest()]
    assert shown == ["before", f"the key is {MARK} and on", "after"]


def test_a_value_that_is_wrapped_over_many_lines_is_found() -> None:
    stream = LineRedactor(Redactor([KEY]))
    shown = [one for part in textwrap.wrap(KEY, 5) for one in stream.lines(f"  {part}")] + stream.rest()
    assert KEY[5:] not in "".join(line.strip() for line in shown)
    assert MARK in "".join(shown)


def test_a_line_that_only_begins_like_a_secret_is_shown_with_the_next() -> None:
    stream = LineRedactor(Redactor([KEY]))
    assert stream.lines("a task: sk-") == []
    assert stream.holds
    assert stream.lines("nothing of it") == ["a task: sk-", "nothing of it"]
    assert stream.lines("sk-live") == []
    assert stream.rest() == ["sk-live"]
    assert stream.rest() == []


def test_a_value_that_a_file_breaks_over_lines_is_found() -> None:
    redactor = Redactor([KEY])
    text = "key:\n" + "\n".join(textwrap.wrap(KEY, 10))
    assert redactor.touches(text.encode())
    assert redactor.text(text) == f"key:\n{MARK}"


def test_files_are_rewritten_where_they_are_and_nowhere_else(tmp_path: Path) -> None:
    root, outside = tmp_path / "artifacts", tmp_path / "outside.txt"
    (root / "deep" / "er").mkdir(parents=True)
    outside.write_text(f"not to be touched: {KEY}")
    (root / "deep" / "er" / "trajectory.json").write_text(json.dumps({"said": f"a {KEY}"}))
    (root / "bytes").write_bytes(b"\xff\xfe " + KEY.encode() + b" \xff")
    (root / "clean").write_text("nothing")
    (root / "link").symlink_to(outside)
    os.link(outside, root / "second-name")
    os.mkfifo(root / "pipe")
    with (root / "sparse").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    assert Redactor([KEY]).files(root) == 2
    assert json.loads((root / "deep" / "er" / "trajectory.json").read_text()) == {"said": f"a {MARK}"}
    assert (root / "bytes").read_bytes() == b"\xff\xfe " + MARK.encode() + b" \xff"
    assert outside.read_text() == f"not to be touched: {KEY}"
    assert Redactor([KEY]).files(tmp_path, ["artifacts", "deep"]) == 0
    assert Redactor([KEY]).files(tmp_path / "none") == 0


def test_names_are_cleaned_and_no_file_can_change_its_user(tmp_path: Path) -> None:
    folder = tmp_path / "rollout" / f"of {KEY}"
    folder.mkdir(parents=True)
    for name in (f"{KEY}.txt", f"{MARK}.txt", "plain"):
        (folder / name).write_text(name)
    (folder / "plain").chmod(0o6755)
    (folder / f"link-{KEY}").symlink_to(tmp_path)
    Redactor([KEY]).files(tmp_path, ["rollout"])
    cleaned = tmp_path / "rollout" / f"of {MARK}"
    assert sorted(path.name for path in cleaned.iterdir()) == [f"{MARK}.txt", f"{MARK}.txt-1", f"link-{MARK}", "plain"]
    assert (cleaned / "plain").stat().st_mode & 0o7777 == 0o755
    (cleaned / "plain").chmod(0o4755)
    Redactor().files(tmp_path)
    assert (cleaned / "plain").stat().st_mode & 0o7777 == 0o755, "without secrets, too"


def test_one_folder_of_many_is_cleaned(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "kept.txt").write_text(f"the key is {KEY}")
    outside = tmp_path / "three" / "deep" / "kept.txt"
    (tmp_path / "link").symlink_to(tmp_path / "three")
    changed = [Redactor([KEY]).files(tmp_path, [name]) for name in ("one", "missing", "link", "two")]
    assert changed == [1, 0, 0, 1]
    assert KEY not in (tmp_path / "one" / "deep" / "kept.txt").read_text()
    assert KEY not in (tmp_path / "two" / "deep" / "kept.txt").read_text()
    assert KEY in outside.read_text(), "nothing is reached through a link"
