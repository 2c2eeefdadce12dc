"""Redact secrets by exact value, in each form they may appear in; never guesses what a secret looks like."""

import base64
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from osmosis.base.safe_open import clean_names, folder_at, is_plain, walk_open

MARK = "[redacted]"
_SHORTEST = 4
_SHORTEST_LINE = 8
LARGEST_FILE = 64 * 1024 * 1024
AT_A_TIME = 1024 * 1024
MOST_FILES = 100_000
MOST_HELD = 8  # Lines; a secret that is broken over more is not found
BEGINNING = 3
CHANGED_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FRAME = re.compile(r"^-----[A-Z0-9 ]+-----\Z")
_BREAK = r"(?:\\r\\n|\\n|\r?\n[ \t]*)?"
_LINE_END = re.compile(r"(?:\\r)?\\n|\r?\n[ \t]*")
_LINE_END_BYTES = re.compile(_LINE_END.pattern.encode())
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
"""`html.escape` without quotes; that module reads a table of all entities on import."""
_URL_USER = re.compile(r"(://)[^/\s]*@")

log = logging.getLogger(__name__)


def without_credentials(text: str) -> str:
    return _URL_USER.sub(r"\1", text)


class Redactor:
    """Replaces values in every usual form: raw, `repr`, JSON, HTML, a shell word, percent-encoded, hexadecimal, base32
    and base64. A search costs one plain search per form; patterns are built after the first hit."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        secrets = {secret for value in values if value for secret in _worth_hiding(value)}
        codes = {code for secret in secrets for code in _codes(secret)}
        plain = {text for secret in secrets for text in _texts(secret)}
        # A value may be broken over lines as a code may.
        codes |= {secret for secret in secrets if len(secret) >= _SHORTEST_LINE and "\n" not in secret}
        self._percent = {code for secret in secrets for code in _percent_codes(secret)}
        self._codes = sorted(codes, key=_longest_first)
        self._forms = sorted(codes | plain | self._percent, key=_longest_first)
        self._code_bytes = [code.encode() for code in self._codes]
        self._form_bytes = [form.encode("utf-8", "replace") for form in self._forms]

    def __bool__(self) -> bool:
        return bool(self._forms)

    def text(self, text: str) -> str:
        if not self._forms:
            return text
        if self._percent and "%" in text:
            text = self._percent_pattern.sub(MARK, text)
        for form in self._forms:
            if form in text:
                text = text.replace(form, MARK)
        if ("\n" in text or "\\n" in text) and (pattern := self._wrapped(_LINE_END.sub("", text))):
            text = pattern.sub(MARK, text)
        return text

    def touches(self, line: bytes) -> bool:
        for form in self._form_bytes:
            if form in line:
                return True
        if self._percent and b"%" in line and self._percent_pattern.search(line.decode("latin-1")):
            return True
        # Most end with a line end, and have none within: nothing is broken over lines in them.
        if not self._codes or (b"\n" not in (within := line.rstrip()) and b"\\n" not in within):
            return False
        squeezed = _LINE_END_BYTES.sub(b"", line)
        return any(code in squeezed for code in self._code_bytes)

    @cached_property
    def _percent_pattern(self) -> re.Pattern[str]:
        codes = (re.escape(code) for code in sorted(self._percent, key=_longest_first))
        return re.compile("|".join(re.sub(r"%([0-9A-F])([0-9A-F])", _any_digits, code) for code in codes))

    def _wrapped(self, squeezed: str) -> re.Pattern[str] | None:
        codes = [code for code in self._codes if code in squeezed]
        return re.compile("|".join(_BREAK.join(code) for code in map(_escaped, codes))) if codes else None

    def data(self, value: Any) -> Any:
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(k) if isinstance(k, str) else k: self.data(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(v) for v in value]
        return value

    def files(self, folder: Path, parts: Sequence[str] = ()) -> int:
        """Redact every file beneath `folder`/`parts`, and its name; return how many changed. Follows no link, as its
        writer may still be at work; logs and leaves what is packed, unreadable or larger than `LARGEST_FILE`."""
        try:
            with folder_at(folder, parts) as opened:
                return self._below(opened)
        except OSError:
            return 0  # there is none

    def _below(self, folder: int) -> int:
        clean_names(folder, self.text, [MOST_FILES])
        return sum(self._file(*entry) for entry in walk_open(folder, MOST_FILES)) if self._forms else 0

    def _file(self, path: str, folder: int, about: os.stat_result) -> int:
        if not is_plain(about):
            return 0
        if about.st_size > LARGEST_FILE:
            log.warning("%s is too large to be searched for secrets", path)
            return 0
        try:
            file = os.open(path.rpartition("/")[2], CHANGED_FILE, dir_fd=folder)
            try:
                return int(is_plain(os.fstat(file)) and self._rewritten(file))
            finally:
                os.close(file)
        except OSError as exc:
            log.warning("%s cannot be searched for secrets: %s", path, exc)
            return 0

    def _rewritten(self, file: int) -> bool:
        parts, size = [], 0
        while size < LARGEST_FILE and (part := os.read(file, min(LARGEST_FILE - size, AT_A_TIME))):
            parts.append(part)
            size += len(part)
        body = b"".join(parts)
        if not self.touches(body):
            return False
        clean = self.text(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if clean == body:
            return False
        with open(file, "r+b", closefd=False) as opened:
            opened.seek(0)
            opened.write(clean)
            opened.truncate()
        return True

    def begins(self, text: str) -> bool:
        longest = max(self._beginnings.values(), default=0)
        for start in range(max(0, len(text) - longest), len(text) - BEGINNING + 1):
            if text[start : start + BEGINNING] in self._beginnings and any(
                form.startswith(text[start:]) for form in self._forms
            ):
                return True
        return False

    @cached_property
    def _beginnings(self) -> dict[str, int]:
        longest: dict[str, int] = {}
        for form in self._forms:
            longest[form[:BEGINNING]] = max(longest.get(form[:BEGINNING], 0), len(form))
        return longest


class LineRedactor:
    """Redacts output line by line; one that ends as a secret begins is held back until the next line, or `rest`."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: list[str] = []

    def lines(self, line: str) -> list[str]:
        self._held.append(line)
        if len(self._held) <= MOST_HELD and self._redactor.begins(
            "".join(text_line.strip() for text_line in self._held)
        ):
            return []
        return self.rest()

    def rest(self) -> list[str]:
        lines, self._held = self._held, []
        return self._redactor.text("\n".join(lines)).split("\n") if lines else []

    @property
    def holds(self) -> bool:
        return bool(self._held)


def _worth_hiding(value: str) -> Iterator[str]:
    if len(value) >= _SHORTEST:
        yield value
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _SHORTEST_LINE and not _FRAME.match(line))


def _longest_first(form: str) -> tuple[int, str]:
    return -len(form), form


def _escaped(code: str) -> list[str]:
    return [re.escape(letter) for letter in code]


def _texts(value: str) -> set[str]:
    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    for _ in range(2):  # JSON within JSON
        forms |= {json.dumps(text)[1:-1] for text in tuple(forms)}
    raw = value.encode("utf-8", "replace")
    forms |= {ascii(value)[1:-1], repr(raw)[2:-1], json.dumps(repr(raw))[3:-2]}
    forms |= {"".join(f"\\x{byte:02x}" for byte in raw), "".join(f"\\u{ord(letter):04x}" for letter in value)}
    marked = value.translate(_HTML)
    quoted = marked.replace('"', "&quot;")
    forms |= {marked, quoted.replace("'", "&#x27;"), quoted.replace("'", "&#39;")}
    forms |= {value.replace("'", "'\\''"), value.replace("'", "'\"'\"'")}
    forms.add(re.sub(r"([^\w@%+=:,./-])", r"\\\1", value))
    return forms


def _percent_codes(value: str) -> set[str]:
    once = {quote(value, safe=""), quote(value), quote_plus(value)}
    return (once | {quote(code, safe="") for code in once}) - {value}


def _codes(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "replace")
    yield from (raw.hex(), raw.hex().upper())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from _aligned(raw, encode, 3, 6)
    yield from _aligned(base64.b64encode(raw), base64.b64encode, 3, 6)
    for code in _aligned(raw, base64.b32encode, 5, 5):
        yield from (code, code.lower())


def _aligned(raw: bytes, encode: Callable[[bytes], bytes], group: int, bits: int) -> Iterator[str]:
    """Encode only what the value decides fully, wherever it begins within the `group` bytes of a block."""
    for shift in range(group):
        coded = encode(b"\0" * shift + raw).decode().rstrip("=")
        fixed = coded[-(-shift * 8 // bits) : (len(raw) + shift) * 8 // bits]
        if len(fixed) >= 2 * _SHORTEST:
            yield fixed


def _any_digits(match: re.Match[str]) -> str:
    return "%" + "".join(f"[{digit}{digit.lower()}]" for digit in match.groups())
