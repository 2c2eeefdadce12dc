"""ARCHITECTURE.md speaks of this code: every file and package it names is there, and it stays short."""

from __future__ import annotations

import re
from pathlib import Path

import osmosis

PACKAGE = Path(str(osmosis.__file__)).parent
TEXT = (PACKAGE.parent.parent / "ARCHITECTURE.md").read_text()
STAGES = {"checkout.py", "model_probe.py", "environment.py", "supervisor.py"}
"""Named in the row of `jobs/` without it."""


def test_every_file_it_names_exists() -> None:
    named = {name for name in re.findall(r"`([\w/]+\.py|[\w/]+/)`", TEXT) if "<" not in name}
    named |= {f"jobs/{name}" for name in STAGES & named}
    places = (PACKAGE, PACKAGE / "cli", PACKAGE / "sdk", PACKAGE / "serve", PACKAGE / "engine", PACKAGE / "records")
    roots = (*places, PACKAGE.parent.parent)
    missing = {name for name in named - STAGES if not any((root / name).exists() for root in roots)}
    assert missing == set()
    assert len(named) > 40, "the pattern no longer finds what the page names"


def test_every_package_has_a_row_and_the_page_stays_short() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    rows = set(re.findall(r"^\| `(\w+)/` \|", TEXT, flags=re.MULTILINE))
    assert packages - rows == {"classic", "testing"}
    assert TEXT.count("\n") < 100
