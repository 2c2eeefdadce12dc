"""Every released version of the templates, as one git bundle with a tag per version: `templates/templates.bundle`.

`template_update` reads old versions from it, offline. `python -m osmosis.workspace.bundle` adds the present folder
as the version in `VERSION`; the result has the same commits wherever it is made, because author and date are fixed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from ..errors import OsmosisError
from .git import GitError, git_at, run_git
from .templates import current_version, templates_dir

BUNDLE = "templates.bundle"
_LEFT_OUT = (BUNDLE, "__pycache__")
_FIXED = {
    "GIT_AUTHOR_NAME": "osmosis",
    "GIT_AUTHOR_EMAIL": "osmosis@localhost",
    "GIT_COMMITTER_NAME": "osmosis",
    "GIT_COMMITTER_EMAIL": "osmosis@localhost",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00+0000",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00+0000",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def versions(folder: Path | None = None) -> list[str]:
    """The versions in the bundle, oldest first."""
    bundle = (folder or templates_dir()) / BUNDLE
    if not bundle.is_file():
        return []
    heads = run_git(git_at(bundle.parent), "bundle", "list-heads", str(bundle)).splitlines()
    tags = [line.rpartition("refs/tags/v")[2] for line in heads if "refs/tags/v" in line]
    return sorted(tags, key=version_key)


def version_key(version: str) -> tuple[int, ...]:
    """For sorting `1.10.0` after `1.9.0`."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def checkout(version: str, dest: Path, folder: Path | None = None) -> None:
    """The templates of one version, as files in the empty folder `dest`. Raises OsmosisError for an unknown one."""
    source = folder or templates_dir()
    known = versions(source)
    if version not in known:
        raise OsmosisError(
            f"this installation does not know version {version} of the templates (it has {', '.join(known) or 'none'})",
            hint="pip install --upgrade osmosis-ai",
        )
    bundle = str(source / BUNDLE)
    clone = ("clone", "--quiet", "--no-local", "--branch", f"v{version}", "--config", "advice.detachedHead=false")
    # Line endings as committed: a merge must not see every line as changed.
    run_git(git_at(source), *clone, "--config", "core.autocrlf=false", bundle, str(dest))
    shutil.rmtree(dest / ".git")


def is_fresh(folder: Path) -> bool:
    """Whether the bundle holds the folder's present content under the folder's version."""
    version = current_version(folder)
    if version not in versions(folder):
        return False
    with tempfile.TemporaryDirectory(prefix="osmosis-bundle-") as scratch:
        dest = Path(scratch) / "old"
        checkout(version, dest, folder)
        return _digest(dest) == _digest(folder)


def write_bundle(folder: Path, *, replace: bool = False) -> bool:
    """Add the folder to its bundle as its present version; False when it is in there already.

    A version whose content differs is refused unless `replace`: what was released stays as it was.
    """
    version = current_version(folder)
    if is_fresh(folder):
        return False
    known = versions(folder)
    if version in known and not replace:
        raise OsmosisError(f"version {version} is in the bundle with other content", hint="raise templates/VERSION")
    with tempfile.TemporaryDirectory(prefix="osmosis-bundle-") as scratch:
        work = Path(scratch) / "work"
        work.mkdir()
        client = git_at(work)
        client.update_environment(**_FIXED)
        run_git(client, "init", "--quiet")
        run_git(client, "symbolic-ref", "HEAD", "refs/heads/main")
        for each in [v for v in known if v != version]:
            _commit_version(folder, work, each, from_bundle=True)
        _commit_version(folder, work, version, from_bundle=False)
        made = Path(scratch) / BUNDLE
        run_git(client, "bundle", "create", "--quiet", str(made), "--all")
        shutil.copyfile(made, folder / BUNDLE)
    return True


def _commit_version(folder: Path, work: Path, version: str, *, from_bundle: bool) -> None:
    for entry in work.iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if from_bundle:
        with tempfile.TemporaryDirectory(prefix="osmosis-bundle-") as scratch:
            checkout(version, Path(scratch) / "old", folder)
            shutil.copytree(Path(scratch) / "old", work, dirs_exist_ok=True)
    else:
        shutil.copytree(folder, work, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    client = git_at(work)
    client.update_environment(**_FIXED)
    # The templates hold a .gitignore of their own, which must not hide any of their files.
    run_git(client, "add", "--all", "--force", ".")
    run_git(client, "commit", "--quiet", "--allow-empty", "-m", f"Templates {version}")
    run_git(client, "tag", f"v{version}")


def _digest(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not set(relative.parts) & set(_LEFT_OUT):
            found[relative.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def main(arguments: list[str]) -> int:
    """`python -m osmosis.workspace.bundle [--replace] [FOLDER]`."""
    folders = [a for a in arguments if not a.startswith("-")]
    folder = Path(folders[0]) if folders else templates_dir()
    try:
        changed = write_bundle(folder, replace="--replace" in arguments)
    except (OsmosisError, GitError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{folder / BUNDLE}: {'written' if changed else 'fresh'}, {', '.join(versions(folder))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
