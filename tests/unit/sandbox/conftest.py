"""Levels that work on this machine; a test that needs another one is skipped, and says why."""

from __future__ import annotations

import pytest

from osmosis.sandbox import Level, probe


@pytest.fixture
def level1() -> Level:
    abilities = probe()
    if abilities.level < Level.NAMESPACES:
        pytest.skip(f"no sandbox of level 1 here: {abilities.reason}")
    return Level.NAMESPACES


@pytest.fixture(params=[Level.NONE, Level.NAMESPACES], ids=["level-0", "level-1"])
def level(request: pytest.FixtureRequest) -> Level:
    if probe().level < request.param:
        pytest.skip(f"no sandbox of level {request.param} here: {probe().reason}")
    chosen: Level = request.param
    return chosen
