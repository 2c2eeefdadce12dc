"""The query of a page's address, and links that change a part of it. A page's filters, order and columns are in its
address and nowhere else: a link is a saved view."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from urllib.parse import urlencode

MAX_VALUE_LENGTH = 500
MAX_VALUES = 200


class QueryParams:
    """Names and values in order, without empty ones; a value that cannot be read counts as not given."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        stripped = ((name, value.strip()[:MAX_VALUE_LENGTH]) for name, value in list(pairs)[:MAX_VALUES])
        self.pairs: Sequence[tuple[str, str]] = [(name, value) for name, value in stripped if value]

    def text(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        return list(dict.fromkeys(value for key, value in self.pairs if key == name))

    def integer(self, name: str) -> int | None:
        text = self.text(name)
        return int(text[:9]) if text.isascii() and text.isdigit() else None

    def real(self, name: str) -> float | None:
        try:
            value = float(self.text(name, "nan"))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def choice(self, name: str, options: Iterable[str], default: str = "") -> str:
        value = self.text(name)
        return value if value in options else default

    def link(self, **changes: object) -> str:
        """Return this query with other values for some names (None drops a name): `?outcome=failed&at=2`, or `?`."""
        pairs = [(name, value) for name, value in self.pairs if name not in changes]
        pairs += [(name, str(value)) for name, value in changes.items() if value not in (None, "")]
        return "?" + urlencode(pairs)

    def without(self, *names: str) -> QueryParams:
        return QueryParams((name, value) for name, value in self.pairs if name not in names)

    def subset(self, *names: str) -> str:
        return urlencode([(name, value) for name, value in self.pairs if name in names])
