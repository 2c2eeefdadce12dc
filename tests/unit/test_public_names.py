"""Everything public is importable from `osmosis`, and importing `osmosis` itself loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import osmosis


def test_every_public_name_resolves() -> None:
    missing = [name for name in osmosis.__all__ if getattr(osmosis, name, None) is None]
    assert missing == []
    assert osmosis.__all__ == sorted(osmosis.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(osmosis, "no_such_name")


@pytest.mark.parametrize("line", ["import osmosis, osmosis_ai", "from osmosis_ai import osmosis_reward"])
def test_import_loads_no_vendor_library(line: str) -> None:
    code = (
        f"import sys; before = set(sys.modules); {line};"
        "print({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(ast.literal_eval(out)) == {"osmosis", "osmosis_ai"}
