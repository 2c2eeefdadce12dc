"""Every released version of the templates, as one git bundle with a tag per version: `templates/templates.bundle`.

It is a template source that copier reads without a network, so `template_update` can render and merge old versions.
`python -m osmosis.workspace.bundle` adds the present folder as the version in `VERSION`; the result has the same
commits wherever it is made, because author and date are fixed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from osmosis.base.git import Git, sealed_environ
from osmosis.errors import OsmosisError

from .templates import current_version, templates_dir

BUNDLE = "templates.bundle"
_LEFT_OUT = (BUNDLE, "__pycache__")
_WHO, _WHEN = {"NAME": "osmosis", "EMAIL": "osmosis@localhost"}, "2026-01-01T00:00:00+0000"
_FIXED = {
    f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in {**_WHO, "DATE": _WHEN}.items()
}


def scratch_git(folder: Path) -> Git:
    """Git for a repository of ours: no configuration of the person reaches it, author and date are fixed.

    Line endings stay as committed: a merge must not see every line as changed.
    """
    settings = {"core.autocrlf": "false", "advice.detachedHead": "false", "init.defaultBranch": "main"}
    return Git(folder, {**sealed_environ(os.environ, settings=settings), **_FIXED})


def versions(folder: Path | None = None) -> list[str]:
    """The versions in the bundle, oldest first."""
    bundle = (folder or templates_dir()) / BUNDLE
    if not bundle.is_file():
        return []
    heads = scratch_git(bundle.parent).text("bundle", "list-heads", str(bundle)).splitlines()
    tags = [line.rpartition("refs/tags/v")[2] for line in heads if "refs/tags/v" in line]
    return sorted(tags, key=version_key)


def version_key(version: str) -> tuple[int, ...]:
    """For sorting `1.10.0` after `1.9.0`."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def is_fresh(folder: Path) -> bool:
    """Whether the bundle holds the folder's present content under the folder's version."""
    version = current_version(folder)
    if version not in versions(folder):
        return False
    with tempfile.TemporaryDirectory(prefix="osmosis-bundle-") as scratch:
        git = _clone(folder, Path(scratch))
        git.run("checkout", "--quiet", f"v{version}")
        _fill(git, folder, Path(scratch))
        return not git.text("status", "--porcelain")


def write_bundle(folder: Path, *, replace: bool = False) -> bool:
    """Add the folder to its bundle as its present version; False when it is in there already.

    A version whose content differs is refused unless `replace`, which takes the newest one out first: what was
    released stays as it was.
    """
    version, known = current_version(folder), versions(folder)
    if is_fresh(folder):
        return False
    if version in known and not (replace and version == known[-1]):
        raise OsmosisError(f"version {version} is in the bundle with other content", hint="raise templates/VERSION")
    before = [each for each in known if each != version]
    with tempfile.TemporaryDirectory(prefix="osmosis-bundle-") as scratch:
        work, made = Path(scratch) / "work", Path(scratch) / BUNDLE
        work.mkdir()
        git = _clone(folder, work) if before else scratch_git(work)
        if before:
            git.run("checkout", "--quiet", "-B", "main", f"v{before[-1]}")
        else:
            git.run("init", "--quiet")
        _fill(git, folder, work)
        git.run("commit", "--quiet", "--allow-empty", "-m", f"Templates {version}")
        git.run("tag", "--force", f"v{version}")
        git.run("bundle", "create", "--quiet", str(made), "main", "HEAD", "--tags")
        shutil.copyfile(made, folder / BUNDLE)
    return True


def _clone(folder: Path, work: Path) -> Git:
    git = scratch_git(work)
    git.run("clone", "--quiet", "--no-checkout", str(folder / BUNDLE), ".")
    return git


def _fill(git: Git, folder: Path, work: Path) -> None:
    """Put the present content of the folder into the index, and nothing else."""
    for entry in work.iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(folder, work, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    # The templates hold a .gitignore of their own, which must not hide any of their files.
    git.run("add", "--all", "--force", ".")


def main(arguments: list[str]) -> int:
    """`python -m osmosis.workspace.bundle [--replace] [FOLDER]`."""
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
