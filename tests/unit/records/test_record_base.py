"""What all records share."""

from __future__ import annotations

import os

import pytest
from pydantic_core import CoreSchema, core_schema

from osmosis.records.base import Record


def test_records_are_built_without_plugins_and_leave_the_environment_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    class Inner:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
            seen.append(os.environ.get("PYDANTIC_DISABLE_PLUGINS"))
            return core_schema.any_schema()

    class Outer(Record):
        inner: Inner

    class Later(Record):
        inner: Inner

    monkeypatch.delenv("PYDANTIC_DISABLE_PLUGINS", raising=False)
    Outer(inner=1)
    assert "PYDANTIC_DISABLE_PLUGINS" not in os.environ
    monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", "one")
    Later(inner=1)
    assert (seen, os.environ["PYDANTIC_DISABLE_PLUGINS"]) == (["__all__", "__all__"], "one")
