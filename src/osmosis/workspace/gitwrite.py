"""Changes to a workspace's git repository: first commit, remote, credential helper, push, snapshot.

Writes the repository's own configuration only, never the person's global one. A snapshot leaves branch, index and
working tree as they are. Nothing here asks a question: git's prompts are off.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from osmosis.base.git import Git, GitError, shown, users_environ

FALLBACK_NAME = "osmosis"
FALLBACK_EMAIL = "osmosis@localhost"
SNAPSHOT_REFS = "refs/osmosis/snapshots"
PUSH_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit of the working tree as it was, on no branch."""

    commit: str
    parent: str | None
    ref: str
    """Where it is pushed: `refs/osmosis/snapshots/<commit>`."""
    diff: str
    """`git diff` from the parent, for the run to record."""
    files: tuple[str, ...]
    """Files that differ from the parent."""


def init_repository(root: Path, branch: str = "main") -> bool:
    """Make `root` the top of a repository; False when it was one already."""
    if (root / ".git").exists():
        return False
    git = Git(root)
    git.text("init", "--quiet")
    # Not `init -b`: this works with every git, and before the first commit it only names the branch.
    git.text("symbolic-ref", "HEAD", f"refs/heads/{branch}")
    return True


def identity_options(root: Path) -> list[str]:
    """`-c` options with a stand-in author when the person has not told git a name; else none."""
    try:
        Git(root).text("-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT")
        return []
    except GitError:
        return ["-c", f"user.name={FALLBACK_NAME}", "-c", f"user.email={FALLBACK_EMAIL}"]


def commit_paths(root: Path, message: str, paths: Sequence[str]) -> str | None:
    """Add and commit exactly these files; the commit, or None when they hold nothing new."""
    git = Git(root)
    git.text("add", "--", *paths)
    if not git.text("status", "--porcelain", "--untracked-files=no", "--", *paths):
        return None
    git.text(*identity_options(root), "commit", "--quiet", "-m", message, "--", *paths)
    return git.text("rev-parse", "HEAD")


def set_remote(root: Path, url: str, name: str = "origin") -> None:
    """Point a remote at a URL, adding it when there is none."""
    git = Git(root)
    known = git.text("remote").splitlines()
    git.text("remote", "set-url" if name in known else "add", name, url)


def set_credential_helper(root: Path, url: str, command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Have git ask `command` for the credential of this URL's host, and nobody else; the key that was set.

    `environ` holds variables the helper needs (where the login is kept). An empty first value switches the
    person's other helpers off for this URL, so that none of them stores the token.
    """
    parts = urlsplit(url)
    key = f"credential.{parts.scheme}://{parts.netloc.rpartition('@')[2]}.helper"
    words = [f"{name}={shlex.quote(value)}" for name, value in environ.items()]
    helper = "!" + " ".join([*words, *(shlex.quote(part) for part in command)])
    git = Git(root)
    git.text("config", "--local", "--replace-all", key, "")
    git.text("config", "--local", "--add", key, helper)
    return key


def set_authority(root: Path, url: str, ca_file: str) -> None:
    """Have git know this URL's host, and no other, by the certificates of a file."""
    parts = urlsplit(url)
    key = f"http.{parts.scheme}://{parts.netloc.rpartition('@')[2]}.sslCAInfo"
    Git(root).text("config", "--local", "--replace-all", key, ca_file)


def push(root: Path, branch: str, *, remote: str = "origin") -> None:
    """Push a branch and follow it. Raises GitError with what the other side said."""
    git = Git(root)
    git.text("push", "--quiet", "--set-upstream", remote, branch, timeout_s=PUSH_TIMEOUT_S)
    if remote == "origin" and not git.text("for-each-ref", "refs/remotes/origin/HEAD"):
        git.text("symbolic-ref", "refs/remotes/origin/HEAD", f"refs/remotes/origin/{branch}")


def make_snapshot(root: Path, message: str = "snapshot of the working tree") -> Snapshot:
    """Store the working tree, untracked files included and ignored ones left out, as a commit on no branch.

    Dated as its parent is: the same tree is the same commit, however many runs are submitted of it.
    """
    git = Git(root)
    try:
        parent: str | None = git.text("rev-parse", "--verify", "--quiet", "HEAD")
    except GitError:
        parent = None
    with tempfile.TemporaryDirectory(prefix="osmosis-snapshot-") as scratch:
        index = Path(scratch) / "index"
        real = root / git.text("rev-parse", "--git-path", "index")
        if real.is_file():
            shutil.copyfile(real, index)  # with its stat cache, so that unchanged files are not read again
        aside = Git(root, users_environ(GIT_INDEX_FILE=str(index)))
        aside.text("add", "--all", "--", ":/")
        tree = aside.text("write-tree")
    parents = ["-p", parent] if parent else []
    date = f"@{git.text('show', '-s', '--format=%ct', parent) if parent else 0} +0000"
    dated = Git(root, users_environ(GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date))
    commit = dated.text(*identity_options(root), "commit-tree", tree, *parents, "-m", message)
    base = parent or git.text("hash-object", "-t", "tree", "/dev/null")
    diff = git.text("diff", "--no-color", "--no-ext-diff", base, commit)
    files = git.text("diff", "--name-only", "-z", base, commit)
    names = tuple(shown(f) for f in files.split("\0") if f)
    return Snapshot(commit, parent, f"{SNAPSHOT_REFS}/{commit}", shown(diff), names)


def push_snapshot(root: Path, snapshot: Snapshot, *, remote: str = "origin") -> None:
    """Send a snapshot to the remote under its hidden ref. No local ref is made."""
    git = Git(root)
    git.text("push", "--quiet", remote, f"{snapshot.commit}:{snapshot.ref}", timeout_s=PUSH_TIMEOUT_S)
