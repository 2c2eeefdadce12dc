"""The key of a stored rollout within its run: (step, row key, attempt).

A row key names a row whatever its place in the file: its `id` where the dataset has unique ones, else the hash of its
content and, from the second equal row on, which of them it is (`0f3a...#2`). What version 1.0 wrote has no row keys:
`DerivedKeys` makes them from what is there.
"""

from __future__ import annotations

from collections.abc import Mapping

Key = tuple[int, str, int]
"""Step (0 outside training), row key, attempt."""


def nth_key(content_hash: str, number: int) -> str:
    """The key of the `number`-th row (from 1) with this content."""
    return content_hash if number == 1 else f"{content_hash}#{number}"


def place_key(row_index: int) -> str:
    """The key of a row of which only its place in the file is known."""
    return f"@{row_index}"


class DerivedKeys:
    """The row keys of the rollouts of one run, asked for in the order in which they were stored.

    Rows of the same content keep apart, because each has a place of its own; which of them is the first depends on that
    order, which changes nothing in what was asked.
    """

    def __init__(self, known: Mapping[int, str] | None = None) -> None:
        """`known`: the keys of places for which keys were made before."""
        self._made: dict[tuple[int, str | None], str] = {}
        self._numbers: dict[str, int] = {}
        self._known = known or {}
        for key in self._known.values():
            content_hash, _, number = key.partition("#")
            self._numbers[content_hash] = max(self._numbers.get(content_hash, 0), int(number or 1))

    def of(self, row_key: str | None, row_index: int, content_hash: str | None) -> str:
        """The row key that was stored, or the one made for a rollout that has none."""
        if row_key is not None:
            return row_key
        found = self._known.get(row_index) or self._made.get((row_index, content_hash))
        if found is None:
            found = self._made[(row_index, content_hash)] = self._make(row_index, content_hash)
        return found

    def _make(self, row_index: int, content_hash: str | None) -> str:
        if content_hash is None:
            return place_key(row_index)
        number = self._numbers[content_hash] = self._numbers.get(content_hash, 0) + 1
        return nth_key(content_hash, number)
