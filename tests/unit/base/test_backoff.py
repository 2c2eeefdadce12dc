from __future__ import annotations

from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from osmosis.base.backoff import backoff_delay, parse_retry_after


@pytest.mark.parametrize(("failures", "ceiling"), [(1, 0.5), (2, 1.0), (3, 2.0), (5, 8.0), (6, 8.0), (5000, 8.0)])
def test_a_delay_doubles_up_to_its_limit_and_is_never_less_than_half(failures: int, ceiling: float) -> None:
    delays = [backoff_delay(failures, base_s=0.5, max_s=8.0) for _ in range(200)]
    assert all(ceiling / 2 <= delay <= ceiling for delay in delays)
    assert len(set(delays)) > 100


def test_the_other_side_may_ask_for_more_up_to_the_limit() -> None:
    assert 0.25 <= backoff_delay(1, base_s=0.5, max_s=8.0, asked_s=0.1) <= 0.5
    assert backoff_delay(1, base_s=0.5, max_s=8.0, asked_s=3.0) == 3.0
    assert backoff_delay(1, base_s=0.5, max_s=8.0, asked_s=600.0) == 8.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("0", 0.0), (None, None), ("", None), ("soon", None)],
)
def test_seconds_of_retry_after(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header) == seconds


def test_a_date_of_retry_after() -> None:
    later = datetime.now(timezone.utc) + timedelta(seconds=100)
    assert 90 < (parse_retry_after(format_datetime(later, usegmt=True)) or 0) <= 100
    assert parse_retry_after(format_datetime(later - timedelta(days=1), usegmt=True)) == 0.0
