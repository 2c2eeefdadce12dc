"""Levels that work on this machine; a test that needs another one is skipped, and says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from osmosis.sandbox import Level


@pytest.fixture
def level1(isolated: None) -> Level:
    return Level.NAMESPACES


@pytest.fixture(params=[Level.NONE, Level.NAMESPACES], ids=["level-0", "level-1"])
def level(request: pytest.FixtureRequest, need_level: Callable[..., None]) -> Level:
    need_level(request.param)
    chosen: Level = request.param
    return chosen
