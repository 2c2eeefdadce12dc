"""What flow tests share: their mark, and a platform in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.platform_app import RunningPlatform

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what walks several processes, so that `-m 'not flow'` leaves it out."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.flow)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[RunningPlatform]:
    from support.platform_app import running_platform  # its libraries are not in the environment that tests Harbor

    with running_platform(tmp_path / "data") as running:
        yield running
