"""Which row is which: the key of every row of a selection, and where stored rollouts belong among the rows of now."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import field
from functools import cached_property
from typing import Protocol

from osmosis.base.light_dataclass import dataclass
from osmosis.records.keys import nth_key

MAX_ID = 200


def id_of(data: dict[str, object]) -> str | None:
    """The `id` of a row as text; None when it has none that can name a row."""
    found = data.get("id")
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    return found if isinstance(found, str) and 0 < len(found) <= MAX_ID and not found.isspace() else None


class Repeats:
    """Keys for the second and every further row of the same content."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def next(self, content_hash: str) -> str:
        number = self._numbers[content_hash] = self._numbers.get(content_hash, 1) + 1
        return nth_key(content_hash, number)


class RowKeys:
    """Gives the rows of one pass over a selection their keys."""

    def __init__(self, *, by_id: bool = False) -> None:
        self._by_id = by_id
        self._seen: set[str] = set()
        self._repeats = Repeats()

    def of(self, data: dict[str, object], content_hash: str) -> str:
        if self._by_id and (found := id_of(data)):
            return found
        if content_hash in self._seen:
            return self._repeats.next(content_hash)
        self._seen.add(content_hash)
        return content_hash


@dataclass
class SelectedRows:
    """The good rows of a selection by their keys."""

    places: dict[str, int] = field(default_factory=dict)
    """Key to zero-based index in the file, in the order of the file."""
    hashes: dict[str, str] | None = None
    """Key to the hash of the content; None when the keys are made from it."""

    @classmethod
    def of(cls, rows: Iterable[tuple[int, str]]) -> SelectedRows:
        """From the index and the hash of each row."""
        keys = RowKeys()
        return cls({keys.of({}, content_hash): index for index, content_hash in rows})

    def by_id(self, ids: dict[str, int]) -> SelectedRows:
        """The same rows, known by their ids: id to index."""
        return SelectedRows(ids, {key: self.hash_of(self.at[index]) for key, index in ids.items()})

    def by_content(self) -> SelectedRows:
        """The same rows, known by their content."""
        return SelectedRows.of((index, self.hash_of(key)) for key, index in self.places.items())

    def hash_of(self, key: str) -> str:
        return key.partition("#")[0] if self.hashes is None else self.hashes[key]

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def at(self) -> dict[int, str]:
        """Index to key."""
        return {index: key for key, index in self.places.items()}

    @cached_property
    def alike(self) -> dict[str, list[str]]:
        """Hash to the keys of the rows with that content."""
        found: dict[str, list[str]] = {}
        for key in self.places:
            found.setdefault(self.hash_of(key), []).append(key)
        return found


class KeyedRollout(Protocol):
    """What is asked of a stored rollout."""

    row_index: int
    row_key: str | None
    hashes: dict[str, str]


class Matching:
    """Finds the row of now for each stored rollout: by key, by content, at last by place.

    `moved` collects what is not as it was stored: the stored row key, to the key and the index of now.
    """

    def __init__(self, rows: SelectedRows) -> None:
        self.rows = rows
        self.moved: dict[str, tuple[str, int]] = {}
        self._known: dict[str, str | None] = {}

    def key_of(self, stored: KeyedRollout) -> str | None:
        """None when no row of now has this key or this content."""
        key = stored.row_key or ""
        if self.rows.places.get(key) == stored.row_index:
            return key
        if key not in self._known:
            self._known[key] = self._find(key, stored)
            self._note(key, self._known[key])
        return self._known[key]

    def _find(self, key: str, stored: KeyedRollout) -> str | None:
        content_hash = stored.hashes.get("row", "")
        here = self.rows.at.get(stored.row_index, "")
        if content_hash and here and self.rows.hash_of(here) == content_hash:
            return here
        if key in self.rows.places:
            return key
        taken = set(self._known.values())
        return next((found for found in self.rows.alike.get(content_hash, ()) if found not in taken), None)

    def adopt(self, left: Iterable[KeyedRollout], stored_rows: Container[object]) -> None:
        """For those left over: the row that stands where theirs stood is theirs, edited, if nothing stored is its own.

        `stored_rows` are the row keys under which something is stored.
        """
        taken = {now for now in self._known.values() if now is not None}
        for stored in left:
            here = self.rows.at.get(stored.row_index)
            if here is None or here in taken or (here in stored_rows and self._known.get(here, here) == here):
                continue
            if self._known.get(stored.row_key or "") is None:
                self._known[stored.row_key or ""] = here
                self._note(stored.row_key or "", here)
                taken.add(here)

    def _note(self, key: str, now: str | None) -> None:
        if now is not None:
            self.moved[key] = (now, self.rows.places[now])
