"""The release script's change of the CHANGELOG."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_release_dates_the_section_and_drops_empty_headings(release: ModuleType) -> None:
    unreleased = "## Unreleased\n\n### Added\n\n- A thing.\n\n### Changed\n\n### Fixed\n"
    text = f"# Changelog\n\n{unreleased}\n## 1.0.0 - 2026-11-24\n\nOld.\n"
    new = release.released_changelog(text, "1.1.0", "2026-12-01")
    unreleased, _, released = new.partition("## 1.1.0 - 2026-12-01")
    assert "- A thing." not in unreleased
    assert "### Fixed" in unreleased
    assert "### Added\n\n- A thing." in released
    assert "### Fixed" not in released
    assert released.endswith("## 1.0.0 - 2026-11-24\n\nOld.\n")


def test_release_refuses_an_empty_section(release: ModuleType) -> None:
    text = "## Unreleased\n\n### Added\n\n### Fixed\n\n## 1.0.0 - 2026-11-24\n"
    with pytest.raises(SystemExit, match="nothing is written"):
        release.released_changelog(text, "1.1.0", "2026-12-01")


def test_this_changelog_can_be_released(release: ModuleType) -> None:
    text = (
        (ROOT / "CHANGELOG.md").read_text().replace("## Unreleased\n", "## Unreleased\n\n### Added\n\n- A line.\n", 1)
    )
    assert "## 9.9.9 - 2030-01-01" in release.released_changelog(text, "9.9.9", "2030-01-01")
