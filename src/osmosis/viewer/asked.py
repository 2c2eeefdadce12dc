"""What the address of a page asks for: the query, as names with their values, and links that change a part of it.

A page's filters, order and columns are in its address and nowhere else: a link is a saved view. What is no number where
one is wanted counts as not given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from urllib.parse import urlencode

LONGEST = 500
"""Characters of one value; a search for more finds what begins with them."""
MOST = 200
"""Values that are looked at."""


class Asked:
    """The names and values of a query, in order."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.pairs: Sequence[tuple[str, str]] = [
            (name, kept) for name, value in list(pairs)[:MOST] if (kept := value.strip()[:LONGEST])
        ]

    def text(self, name: str, default: str = "") -> str:
        return next((value for known, value in self.pairs if known == name), default)

    def all(self, name: str) -> list[str]:
        """Every value of a name once, in order."""
        return list(dict.fromkeys(value for known, value in self.pairs if known == name))

    def number(self, name: str) -> int | None:
        """A whole number that is not negative."""
        found = self.text(name)
        return int(found[:9]) if found.isascii() and found.isdigit() else None

    def real(self, name: str) -> float | None:
        try:
            found = float(self.text(name, "nan"))
        except ValueError:
            return None
        return found if math.isfinite(found) else None

    def one_of(self, name: str, known: Iterable[str], default: str = "") -> str:
        found = self.text(name)
        return found if found in known else default

    def link(self, **changed: object) -> str:
        """This query with other values for some names (None: without them): `?outcome=failed&at=2`, or `?`."""
        kept = [(name, value) for name, value in self.pairs if name not in changed]
        added = [(name, str(value)) for name, value in changed.items() if value not in (None, "")]
        return "?" + urlencode([*kept, *added])

    def without(self, name: str) -> Asked:
        """The same query without a name."""
        return Asked((known, value) for known, value in self.pairs if known != name)

    def only(self, *names: str) -> str:
        """The query of these names alone, without the question mark."""
        return urlencode([(name, value) for name, value in self.pairs if name in names])
