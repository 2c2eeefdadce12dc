"""Every released version of the templates in one git bundle with a tag per version: `templates/templates.bundle`.

copier reads it without a network, so `template_update` can merge old versions. `PYTHONPATH=tests python -m
support.template_bundle` adds the present folder as the version in `VERSION`; author and date are fixed, so its commits
are the same anywhere.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from osmosis.base.git import Git
from osmosis.errors import OsmosisError
from osmosis.workspace.templates import BUNDLE, current_version, scratch_git, templates_dir, versions

_LEFT_OUT = (BUNDLE, "__pycache__")


def is_fresh(folder: Path) -> bool:
    version = current_version(folder)
    if version not in versions(folder):
        return False
    with tempfile.TemporaryDirectory(prefix="osmosis-bundle-") as scratch:
        git = _clone(folder, Path(scratch))
        git.run("checkout", "--quiet", f"v{version}")
        _fill(git, folder, Path(scratch))
        return not git.text("status", "--porcelain")


def write_bundle(folder: Path, *, replace: bool = False) -> bool:
    """Add the folder to its bundle as its present version; return False when it is there already.

    A version with other content is refused, unless `replace` and it is the newest.
    """
    version, existing = current_version(folder), versions(folder)
    if is_fresh(folder):
        return False
    if version in existing and not (replace and version == existing[-1]):
        raise OsmosisError(f"version {version} is in the bundle with other content", hint="raise templates/VERSION")
    before = [each for each in existing if each != version]
    with tempfile.TemporaryDirectory(prefix="osmosis-bundle-") as scratch:
        work, bundle = Path(scratch) / "work", Path(scratch) / BUNDLE
        work.mkdir()
        git = _clone(folder, work) if before else scratch_git(work)
        if before:
            git.run("checkout", "--quiet", "-B", "main", f"v{before[-1]}")
        else:
            git.run("init", "--quiet")
        _fill(git, folder, work)
        git.run("commit", "--quiet", "--allow-empty", "-m", f"Templates {version}")
        git.run("tag", "--force", f"v{version}")
        git.run("bundle", "create", "--quiet", str(bundle), "main", "HEAD", "--tags")
        shutil.copyfile(bundle, folder / BUNDLE)
    return True


def _clone(folder: Path, work: Path) -> Git:
    git = scratch_git(work)
    git.run("clone", "--quiet", "--no-checkout", str(folder / BUNDLE), ".")
    return git


def _fill(git: Git, folder: Path, work: Path) -> None:
    for entry in work.iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(folder, work, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    # The templates hold a .gitignore of their own, which must not hide any of their files.
    git.run("add", "--all", "--force", ".")


def main(arguments: list[str]) -> int:
    folders = [a for a in arguments if not a.startswith("-")]
    folder = Path(folders[0]) if folders else templates_dir()
    try:
        changed = write_bundle(folder, replace="--replace" in arguments)
    except OsmosisError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{folder / BUNDLE}: {'written' if changed else 'fresh'}, {', '.join(versions(folder))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
