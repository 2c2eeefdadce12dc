from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from osmosis.records.run.rows import nth_key

MAX_ID = 200


def read_id(data: dict[str, object]) -> str | None:
    identifier = data.get("id")
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        return str(identifier)
    if isinstance(identifier, str) and 0 < len(identifier) <= MAX_ID and not identifier.isspace():
        return identifier
    return None


class Repeats:
    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def next(self, content_hash: str) -> str:
        number = self._numbers[content_hash] = self._numbers.get(content_hash, 1) + 1
        return nth_key(content_hash, number)


class RowKeys:
    def __init__(self, *, by_id: bool = False) -> None:
        self._by_id = by_id
        self._seen: set[str] = set()
        self._repeats = Repeats()

    def of(self, data: dict[str, object], content_hash: str) -> str:
        if self._by_id and (key := read_id(data)):
            return key
        if content_hash in self._seen:
            return self._repeats.next(content_hash)
        self._seen.add(content_hash)
        return content_hash


@dataclass
class SelectedRows:
    places: dict[str, int] = field(default_factory=dict)
    """Zero-based index in the file, by key, in the order of the file."""
    hashes: dict[str, str] | None = None  # Hash of the content by key; None when the keys are made from it

    @classmethod
    def of(cls, rows: Iterable[tuple[int, str]]) -> "SelectedRows":
        keys = RowKeys()
        return cls({keys.of({}, content_hash): index for index, content_hash in rows})

    def by_id(self, ids: dict[str, int]) -> "SelectedRows":
        return SelectedRows(ids, {key: self.hash_of(self.at[index]) for key, index in ids.items()})

    def by_content(self) -> "SelectedRows":
        return SelectedRows.of((index, self.hash_of(key)) for key, index in self.places.items())

    def hash_of(self, key: str) -> str:
        return key.partition("#")[0] if self.hashes is None else self.hashes[key]

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def at(self) -> dict[int, str]:
        return {index: key for key, index in self.places.items()}

    @cached_property
    def alike(self) -> dict[str, list[str]]:
        keys: dict[str, list[str]] = {}
        for key in self.places:
            keys.setdefault(self.hash_of(key), []).append(key)
        return keys


class KeyedRollout(Protocol):
    row_index: int
    row_key: str | None
    hashes: dict[str, str]


class Matching:
    """Finds the present row of each stored rollout, by key, content or place; `moved`: the rows that changed."""

    def __init__(self, rows: SelectedRows) -> None:
        self.rows = rows
        self.moved: dict[str, tuple[str, int]] = {}
        self._known: dict[str, str | None] = {}

    def key_of(self, stored: KeyedRollout) -> str | None:
        """Return None when no present row has this key or this content."""
        key = stored.row_key or ""
        if self.rows.places.get(key) == stored.row_index:
            return key
        if key not in self._known:
            self._known[key] = self._find(key, stored)
            self._note(key, self._known[key])
        return self._known[key]

    def _find(self, key: str, stored: KeyedRollout) -> str | None:
        content_hash = stored.hashes.get("row", "")
        present = self.rows.at.get(stored.row_index, "")
        if content_hash and present and self.rows.hash_of(present) == content_hash:
            return present
        if key in self.rows.places:
            return key
        matched = set(self._known.values())
        return next((index for index in self.rows.alike.get(content_hash, ()) if index not in matched), None)

    def adopt(self, left: Iterable[KeyedRollout], stored_rows: Container[object]) -> None:
        """Assign the rest by place: the row there counts as the same one, edited, unless stored rollouts match it."""
        matched = {now for now in self._known.values() if now is not None}
        for stored in left:
            present = self.rows.at.get(stored.row_index)
            if (
                present is None
                or present in matched
                or (present in stored_rows and self._known.get(present, present) == present)
            ):
                continue
            if self._known.get(stored.row_key or "") is None:
                self._known[stored.row_key or ""] = present
                self._note(stored.row_key or "", present)
                matched.add(present)

    def _note(self, key: str, now: str | None) -> None:
        if now is not None:
            self.moved[key] = (now, self.rows.places[now])
