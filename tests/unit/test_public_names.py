"""Everything public is importable from `osmosis`, and importing `osmosis` itself loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import osmosis


def test_every_public_name_resolves() -> None:
    missing = [name for name in osmosis.__all__ if getattr(osmosis, name, None) is None]
    assert missing == []
    assert osmosis.__all__ == sorted(osmosis.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(osmosis, "no_such_name")


def test_import_loads_no_vendor_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import osmosis, osmosis_ai;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['osmosis', 'osmosis_ai']"
