"""Takes declared secrets out of whatever is written: by exact value, in each form it may appear in.

Knows values, not patterns: it never guesses what a secret looks like, but for the user name and password of a URL.
A value shorter than four characters is left alone, since its replacement would destroy ordinary text. Of a value with
several lines each line counts by itself: logs are written line by line.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

MARK = "[redacted]"
_SHORTEST = 4
_SHORTEST_LINE = 8
_FRAME = re.compile(r"^-----[A-Z0-9 ]+-----$")
"""Says what a key is, and is in every file of its kind."""
_BREAK = r"(?:\\r\\n|\\n|\r?\n[ \t]*)?"
_LINE_END = re.compile(r"(?:\\r)?\\n|\r?\n[ \t]*")
"""Base64 and its like are wrapped: here a line may end, also one inside JSON."""
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
        if any(form in line for form in self._form_bytes):
            return True
        if self._percent and b"%" in line and self._percent_pattern.search(line.decode("latin-1")):
            return True
        if not self._codes or (b"\n" not in line and b"\\n" not in line):
            return False
        squeezed = _squeezed(line.decode("latin-1")).encode("latin-1")
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

    def files(self, folder: Path) -> int:
        """Rewrites every file beneath `folder` that holds a secret; returns how many did. Packed files are not
        opened, links not followed; a file that cannot be read or written is logged and left."""
        changed = 0
        if not self._forms:
            return changed
        for path in folder.rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            try:
                body = path.read_bytes()
                if not self.touches(body):
                    continue
                clean = self.text(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
                if clean != body:
                    path.write_bytes(clean)
                    changed += 1
            except OSError as exc:
                log.warning("%s cannot be searched for secrets: %s", path, exc)
        return changed


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
    forms |= {html.escape(value), html.escape(value, quote=False), html.escape(value).replace("&#x27;", "&#39;")}
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
