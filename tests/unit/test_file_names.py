"""Files are found by their names: the platform, the largest package, adds no name that two others carry."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import osmosis

ROOT = Path(osmosis.__file__).parent
EXPECTED = {"__init__", "__main__", "settings"}
"""Names that Python or every package of ours gives."""


def test_no_name_of_the_platform_is_carried_by_two_others() -> None:
    files = list(ROOT.rglob("*.py"))
    count = Counter(path.stem for path in files)
    ours = {path.stem for path in files if path.is_relative_to(ROOT / "platform")}
    assert sorted(name for name in ours - EXPECTED if count[name] > 2) == []
