"""Takes declared secrets out of whatever is written: by exact value, in each form it may appear in.

Knows values, not patterns: it never guesses what a secret looks like, but for the user name and password of a URL.
A value shorter than four characters is left alone, since its replacement would destroy ordinary text.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

MARK = "[redacted]"
_SHORTEST = 4
_URL_USER = re.compile(r"(://)[^/\s]*@")

log = logging.getLogger(__name__)


def without_credentials(text: str) -> str:
    """`https://user:token@host/x` becomes `https://host/x`, wherever it stands in the text."""
    return _URL_USER.sub(r"\1", text)


class Redactor:
    """Replaces each value: raw, URL-encoded, base64 (any alignment), JSON-escaped."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values if value and len(value) >= _SHORTEST for form in _forms(value)}
        ordered = sorted((f for f in forms if len(f) >= _SHORTEST), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._bytes = re.compile(self._pattern.pattern.encode()) if self._pattern else None

    def __bool__(self) -> bool:
        return self._pattern is not None

    def text(self, text: str) -> str:
        return self._pattern.sub(MARK, text) if self._pattern else text

    def touches(self, line: bytes) -> bool:
        """Whether these bytes hold a secret: most do not, and then nothing has to be taken apart."""
        return self._bytes is not None and self._bytes.search(line) is not None

    def data(self, value: Any) -> Any:
        """A copy of JSON-like data with every text redacted, keys included."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self._pattern.sub(MARK, value)
        if isinstance(value, dict):
            return {self.text(k) if isinstance(k, str) else k: self.data(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(v) for v in value]
        return value

    def files(self, folder: Path) -> int:
        """Rewrites every file beneath `folder` that holds a secret; returns how many did. Packed files are not
        opened, links not followed; a file that cannot be read or written is logged and left."""
        changed = 0
        if self._bytes is None:
            return changed
        for path in folder.rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            try:
                body = path.read_bytes()
                clean = self._bytes.sub(MARK.encode(), body)
                if clean != body:
                    path.write_bytes(clean)
                    changed += 1
            except OSError as exc:
                log.warning("%s cannot be searched for secrets: %s", path, exc)
        return changed


def _forms(value: str) -> Iterable[str]:
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield quote(value, safe="")
    yield quote(value)
    yield quote_plus(value)
    raw = value.encode()
    # Inside longer base64 a value starts at one of three alignments; only the characters it fully decides are fixed.
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            coded = encode(b"\0" * shift + raw).decode().rstrip("=")
            start = (0, 2, 3)[shift]
            whole = (len(raw) + shift) * 8 // 6
            fixed = coded[start:whole]
            if len(fixed) >= 2 * _SHORTEST:
                yield fixed
