"""What an operator says about the sandbox of jobs."""

from __future__ import annotations

import pytest

from osmosis.records.sandbox import LIMITS, SandboxSettings, limit_of


def test_every_limit_is_a_field() -> None:
    assert set(LIMITS) <= set(SandboxSettings.model_fields)
    assert SandboxSettings.model_validate(dict([limit_of("memory_mb=4096"), limit_of("cpus=1.5")])).cpus == 1.5


@pytest.mark.parametrize("text", ["memory_mb", "memory=4", "allow=x", "=3"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not NAME=VALUE"):
        limit_of(text)
