"""Takes declared secrets out of whatever is written: by exact value, in each form it may appear in.

Knows values, not patterns: it never guesses what a secret looks like, but for the user name and password of a URL.
A value shorter than four characters is left alone, since its replacement would destroy ordinary text. Of a value with
several lines each line counts by itself: logs are written line by line.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from .no_follow import FOLDER, folder_at, is_plain, walk_open

MARK = "[redacted]"
_SHORTEST = 4
_SHORTEST_LINE = 8
LARGEST_FILE = 64 * 1024 * 1024
AT_A_TIME = 1024 * 1024
MOST_FILES = 100_000
MOST_HELD = 8
"""Lines; a secret that is broken more often is not found."""
BEGINNING = 3
CHANGED_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FRAME = re.compile(r"^-----[A-Z0-9 ]+-----$")
"""Says what a key is, and is in every file of its kind."""
_BREAK = r"(?:\\r\\n|\\n|\r?\n[ \t]*)?"
_LINE_END = re.compile(r"(?:\\r)?\\n|\r?\n[ \t]*")
"""Base64 and its like are wrapped: here a line may end, also one inside JSON."""
_LINE_END_BYTES = re.compile(_LINE_END.pattern.encode())
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
"""As `html.escape` without quotes; that module reads a table of all entities when it is imported."""
_URL_USER = re.compile(r"(://)[^/\s]*@")

log = logging.getLogger(__name__)


def without_credentials(text: str) -> str:
    """`https://user:token@host/x` becomes `https://host/x`, wherever it stands in the text."""
    return _URL_USER.sub(r"\1", text)


class Redactor:
    """Replaces each value in every form it is usually written in: raw, as `repr`, JSON (also twice), HTML, a shell
    word, percent-encoded, hexadecimal, base32 and base64 (any alignment, wrapped, the latter also twice).

    Looking costs one plain search for each form; patterns are made when something was found.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        whole = {one for value in values if value for one in _worth_hiding(value)}
        codes = {code for one in whole for code in _codes(one)}
        plain = {text for one in whole for text in _texts(one)}
        # A value may be broken over lines as a code may.
        codes |= {one for one in whole if len(one) >= _SHORTEST_LINE and "\n" not in one}
        self._percent = {code for one in whole for code in _percent_codes(one)}
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
        if ("\n" in text or "\\n" in text) and (found := self._wrapped(_squeezed(text))):
            text = found.sub(MARK, text)
        return text

    def touches(self, line: bytes) -> bool:
        """Whether these bytes hold a secret: most do not, and then nothing has to be taken apart."""
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
        return re.compile("|".join(_any_case(code) for code in sorted(self._percent, key=_longest_first)))

    def _wrapped(self, squeezed: str) -> re.Pattern[str] | None:
        """What finds the codes that this text holds once its line ends are gone; None when it holds none."""
        found = [code for code in self._codes if code in squeezed]
        return re.compile("|".join(_BREAK.join(code) for code in map(_escaped, found))) if found else None

    def data(self, value: Any) -> Any:
        """A copy of JSON-like data with every text redacted, keys included."""
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
        """Rewrites every file beneath `folder`/`parts` that holds a secret; returns how many did.

        Whoever wrote them may still do so: links and second names are not followed. Packed files are not opened; a
        file that cannot be read or written, or is larger than `LARGEST_FILE`, is logged and left.
        """
        if not self._forms:
            return 0
        try:
            with folder_at(folder, parts) as opened:
                return self._below(opened)
        except OSError:
            return 0  # there is none

    def folders(self, folder: Path, names: Iterable[str]) -> int:
        """`files` of some folders in `folder`, in fewer steps than one by one."""
        changed = 0
        with contextlib.suppress(OSError), folder_at(folder, ()) as opened:
            for name in names if self._forms else ():
                with contextlib.suppress(OSError):
                    below = os.open(name, FOLDER, dir_fd=opened)
                    try:
                        changed += self._below(below)
                    finally:
                        os.close(below)
        return changed

    def _below(self, folder: int) -> int:
        return sum(self._file(*found) for found in walk_open(folder, MOST_FILES))

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
        """Whether this open file held a secret, which is then gone."""
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
        """Whether the text ends with the beginning of a secret, of at least three characters: what follows may be its
        rest."""
        longest = max(self._beginnings.values(), default=0)
        for start in range(max(0, len(text) - longest), len(text) - BEGINNING + 1):
            if text[start : start + BEGINNING] in self._beginnings and any(
                form.startswith(text[start:]) for form in self._forms
            ):
                return True
        return False

    @cached_property
    def _beginnings(self) -> dict[str, int]:
        """The first letters of each form: how long the longest is that begins so."""
        found: dict[str, int] = {}
        for form in self._forms:
            found[form[:BEGINNING]] = max(found.get(form[:BEGINNING], 0), len(form))
        return found


class LineRedactor:
    """For output that comes line by line: a secret that is split over two or more lines is found, too.

    A line that ends as a secret begins is held back until the next one, or `rest`, says what it was.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: list[str] = []

    def lines(self, line: str) -> list[str]:
        """The lines that can be shown now; none when this one is held back."""
        self._held.append(line)
        if len(self._held) <= MOST_HELD and self._redactor.begins("".join(one.strip() for one in self._held)):
            return []
        return self.rest()

    def rest(self) -> list[str]:
        """What is held back, as far as it is known now."""
        held, self._held = self._held, []
        return self._redactor.text("\n".join(held)).split("\n") if held else []

    @property
    def holds(self) -> bool:
        return bool(self._held)


def _worth_hiding(value: str) -> Iterator[str]:
    """The value, and of one with several lines each line that could be told from ordinary text."""
    if len(value) >= _SHORTEST:
        yield value
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _SHORTEST_LINE and not _FRAME.match(line))


def _longest_first(form: str) -> tuple[int, str]:
    return -len(form), form


def _squeezed(text: str) -> str:
    """Without line ends, and without those of JSON, and the blanks after them."""
    return _LINE_END.sub("", text)


def _escaped(code: str) -> list[str]:
    return [re.escape(letter) for letter in code]


def _texts(value: str) -> set[str]:
    """The value as programs print it."""
    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    forms |= {json.dumps(text)[1:-1] for text in tuple(forms)}  # JSON within JSON
    marked = value.translate(_HTML)
    quoted = marked.replace('"', "&quot;")
    forms |= {marked, quoted.replace("'", "&#x27;"), quoted.replace("'", "&#39;")}
    forms |= {value.replace("'", "'\\''"), value.replace("'", "'\"'\"'")}
    forms.add(re.sub(r"([^\w@%+=:,./-])", r"\\\1", value))
    return forms


def _percent_codes(value: str) -> set[str]:
    return {quote(value, safe=""), quote(value), quote_plus(value)} - {value}


def _codes(value: str) -> Iterator[str]:
    """The value in hexadecimal, base32 and base64."""
    raw = value.encode("utf-8", "replace")
    yield from (raw.hex(), raw.hex().upper())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from _aligned(raw, encode, 3, 6)
    yield from _aligned(base64.b64encode(raw), base64.b64encode, 3, 6)
    for code in _aligned(raw, base64.b32encode, 5, 5):
        yield from (code, code.lower())


def _aligned(raw: bytes, encode: Callable[[bytes], bytes], group: int, bits: int) -> Iterator[str]:
    """What the value fully decides of its code, wherever it begins within the `group` bytes of a block."""
    for shift in range(group):
        coded = encode(b"\0" * shift + raw).decode().rstrip("=")
        fixed = coded[-(-shift * 8 // bits) : (len(raw) + shift) * 8 // bits]
        if len(fixed) >= 2 * _SHORTEST:
            yield fixed


def _any_case(code: str) -> str:
    """A percent-encoded value as a pattern: `%2F` may be `%2f`."""
    return re.sub(r"%([0-9A-F])([0-9A-F])", _any_digits, re.escape(code))


def _any_digits(found: re.Match[str]) -> str:
    return "%" + "".join(f"[{digit}{digit.lower()}]" for digit in found.groups())
