"""Which rollouts are meant, by their keys: those that are stored, or those that are to run. Holds a million of them in
little memory, and knows nothing of what they are.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from osmosis.records.keys import Key


class KeySet:
    """Keys in little memory: one bit mask of attempts per row (and step)."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._masks: dict[str | tuple[int, str], int] = {}
        self._size = 0
        for key in keys:
            self.add(key)

    def __contains__(self, key: Key) -> bool:
        step, row, attempt = key
        return bool(self._masks.get((step, row) if step else row, 0) >> attempt & 1)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Key]:
        for slot, mask in self._masks.items():
            step, row = (0, slot) if isinstance(slot, str) else slot
            for attempt in range(mask.bit_length()):
                if mask >> attempt & 1:
                    yield step, row, attempt

    @property
    def rows(self) -> Container[object]:
        """The row keys of which there is an attempt, outside training."""
        return self._masks.keys()

    def add(self, key: Key) -> bool:
        """False when it was there already."""
        step, row, attempt = key
        slot = (step, row) if step else row
        mask = self._masks.get(slot, 0)
        if mask >> attempt & 1:
            return False
        self._masks[slot] = mask | 1 << attempt
        self._size += 1
        return True
