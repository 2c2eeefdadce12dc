from __future__ import annotations

from datetime import timedelta

import pytest

from osmosis.records.base import utc_now
from osmosis.records.rollout import Category
from osmosis.viewer import filters


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "just now"), (200, "3 min ago"), (7300, "2 h ago"), (90_000, "1 day ago")]
)
def test_ago(seconds: float, text: str) -> None:
    assert filters.ago(utc_now() - timedelta(seconds=seconds)) == text


def test_every_category_has_advice() -> None:
    assert {filters.advice(category) for category in Category} == set(filters.ADVICE.values())
    assert filters.advice("no such category") == filters.ADVICE[Category.UNKNOWN]
