"""The first changed of several versions, searched with noise: seldom the wrong one, and never where none changed."""

from __future__ import annotations

from random import Random

import pytest

from osmosis.local.bisect import chances, next_version
from osmosis.local.branch import CERTAIN

VERSIONS = [str(place) for place in range(9)]
ROWS = 10


def search(source: Random, before: float, after: float, first_bad: int) -> int | None:
    """Return the version that is certain after at most 30 measurements of one attempt at each row."""
    counts: dict[str, dict[int, tuple[float, int]]] = {}

    def measure(place: int, attempts: int) -> None:
        rate = before if place < first_bad else after
        have = counts.setdefault(VERSIONS[place], dict.fromkeys(range(ROWS), (0.0, 0)))
        for row, (total, size) in have.items():
            passed = sum(source.random() < rate for _ in range(attempts))
            have[row] = (total + passed, size + attempts)

    measure(0, 12)
    measure(8, 12)
    for _ in range(30):
        chance = chances(VERSIONS, counts)
        if max(chance) >= CERTAIN:
            return chance.index(max(chance))
        place = next_version(VERSIONS, chance, ())
        assert place is not None
        measure(place, 1)
    return None


@pytest.mark.parametrize(("before", "after", "least"), [(1.0, 0.0, 1.0), (0.8, 0.3, 0.9), (0.7, 0.5, 0.2)])
def test_an_innocent_version_is_seldom_named(before: float, after: float, least: float) -> None:
    source = Random(9)
    truths = [source.randint(1, 8) for _ in range(60)]
    names = [search(source, before, after, truth) for truth in truths]
    certain = [(name, truth) for name, truth in zip(names, truths, strict=True) if name is not None]
    assert len(certain) >= least * 60
    assert sum(name != truth for name, truth in certain) <= 0.1 * len(certain)


def test_equal_code_is_changed_or_not_wherever_it_is() -> None:
    """A change that was taken back, and made again: only its last place has all equal versions on one side."""
    versions = ["a", "b", "a", "b"]
    assert chances(versions, {"a": {0: (9, 9)}, "b": {0: (0, 9)}}) == [0, 0, 0, 0]
    assert chances(["a", "a", "b"], {}) == [0, 0, 1]
    assert next_version(["a", "b", "c"], [0, 0.5, 0.5], {"b"}) is None
