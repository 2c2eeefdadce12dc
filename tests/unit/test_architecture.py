"""ARCHITECTURE.md speaks of this code: every file and folder it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import osmosis

PACKAGE = Path(str(osmosis.__file__)).parent
ROOT = PACKAGE.parent.parent


def test_every_file_and_folder_that_the_page_names_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    quoted = " ".join(re.findall(r"`([^`\n]+)`", text))
    named = {name for name in re.findall(r"(?<![\w./<-])([\w./]+\.py|[\w/]+/)(?![\w<])", quoted) if "<" not in name}
    assert len(named) > 60, "the pattern no longer finds what the page names"
    paths = [path for path in PACKAGE.rglob("*") if "__pycache__" not in path.parts]
    there = {f"/{path.relative_to(PACKAGE)}{'/' if path.is_dir() else ''}" for path in paths}
    missing = {
        name for name in named if not (ROOT / name).exists() and not any(path.endswith(f"/{name}") for path in there)
    }
    assert missing == set()


def test_no_pattern_lets_a_line_break_through_at_its_end() -> None:
    """`$` matches before a last line break, too: what checks a name or an address ends in `\\Z`."""
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r'\bre\.\w+\(.*\$[)"]', line) and "MULTILINE" not in line
    ]
    assert [line for line in found if r"(?!\.{1,2}$)" not in line] == []
