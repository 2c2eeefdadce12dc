"""Prepare a release on a clean main: set the version, date the CHANGELOG's section, build, commit and tag.

python .ci/release.py 1.2.0
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = "### Added\n\n### Changed\n\n### Fixed\n"


def run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def released_changelog(text: str, version: str, day: str) -> str:
    """Return the CHANGELOG with its unreleased section dated and an empty one above it."""
    head, found, rest = text.partition("## Unreleased\n")
    if not found:
        raise SystemExit("CHANGELOG.md has no section '## Unreleased'")
    body, next_version, older = rest.partition("\n## ")
    body = re.sub(r"### \w+\n+(?=### |\Z)", "", body.strip("\n") + "\n")
    if not body.strip():
        raise SystemExit("CHANGELOG.md: nothing is written under '## Unreleased'")
    return f"{head}## Unreleased\n\n{SECTIONS}\n## {version} - {day}\n{body}{next_version}{older}"


def main(arguments: list[str]) -> None:
    if len(arguments) != 1 or not re.fullmatch(r"\d+\.\d+\.\d+", arguments[0]):
        raise SystemExit("usage: make release VERSION=1.2.0")
    version = arguments[0]
    if run("git", "status", "--porcelain"):
        raise SystemExit("the working tree has changes: commit them first")
    if run("git", "tag", "--list", f"v{version}"):
        raise SystemExit(f"tag v{version} exists")
    changelog = ROOT / "CHANGELOG.md"
    changelog.write_text(released_changelog(changelog.read_text(), version, datetime.date.today().isoformat()))
    version_file = ROOT / "src" / "osmosis" / "_version.py"
    version_file.write_text(re.sub(r'__version__ = "[^"]+"', f'__version__ = "{version}"', version_file.read_text()))
    run("make", "docs-site")
    run(str(ROOT / ".venv/bin/uv"), "build", "--quiet")
    run("git", "commit", "--quiet", "--all", "--message", f"release: {version}")
    run("git", "tag", "--annotate", f"v{version}", "--message", f"osmosis {version}")
    print(f"dist/ has {version}. Next: git push --follow-tags, then {ROOT.name}/.venv/bin/uv publish")


if __name__ == "__main__":
    main(sys.argv[1:])
