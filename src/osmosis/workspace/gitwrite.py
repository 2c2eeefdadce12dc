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

from .git import GitError, git_at, run_git, shown

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
    client = git_at(root)
    run_git(client, "init", "--quiet")
    # Not `init -b`: this works with every git, and before the first commit it only names the branch.
    run_git(client, "symbolic-ref", "HEAD", f"refs/heads/{branch}")
    return True


def identity_options(root: Path) -> list[str]:
    """`-c` options with a stand-in author when the person has not told git a name; else none."""
    try:
        run_git(git_at(root), "-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT")
        return []
    except GitError:
        return ["-c", f"user.name={FALLBACK_NAME}", "-c", f"user.email={FALLBACK_EMAIL}"]


def commit_paths(root: Path, message: str, paths: Sequence[str]) -> str | None:
    """Add and commit exactly these files; the commit, or None when they hold nothing new."""
    client = git_at(root)
    run_git(client, "add", "--", *paths)
    if not run_git(client, "status", "--porcelain", "--untracked-files=no", "--", *paths):
        return None
    run_git(client, *identity_options(root), "commit", "--quiet", "-m", message, "--", *paths)
    return run_git(client, "rev-parse", "HEAD")


def set_remote(root: Path, url: str, name: str = "origin") -> None:
    """Point a remote at a URL, adding it when there is none."""
    client = git_at(root)
    known = run_git(client, "remote").splitlines()
    run_git(client, "remote", "set-url" if name in known else "add", name, url)


def set_credential_helper(root: Path, url: str, command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Have git ask `command` for the credential of this URL's host, and nobody else; the key that was set.

    `environ` holds variables the helper needs (where the login is kept). An empty first value switches the
    person's other helpers off for this URL, so that none of them stores the token.
    """
    parts = urlsplit(url)
    key = f"credential.{parts.scheme}://{parts.netloc.rpartition('@')[2]}.helper"
    words = [f"{name}={shlex.quote(value)}" for name, value in environ.items()]
    helper = "!" + " ".join([*words, *(shlex.quote(part) for part in command)])
    client = git_at(root)
    run_git(client, "config", "--local", "--replace-all", key, "")
    run_git(client, "config", "--local", "--add", key, helper)
    return key


def push(root: Path, branch: str, *, remote: str = "origin") -> None:
    """Push a branch and follow it. Raises GitError with what the other side said."""
    client = git_at(root)
    run_git(client, "push", "--quiet", "--set-upstream", remote, branch, kill_after_timeout=PUSH_TIMEOUT_S)
    if remote == "origin" and not run_git(client, "for-each-ref", "refs/remotes/origin/HEAD"):
        run_git(client, "symbolic-ref", "refs/remotes/origin/HEAD", f"refs/remotes/origin/{branch}")


def make_snapshot(root: Path, message: str = "snapshot of the working tree") -> Snapshot:
    """Store the working tree, untracked files included and ignored ones left out, as a commit on no branch."""
    client = git_at(root)
    try:
        parent: str | None = run_git(client, "rev-parse", "--verify", "--quiet", "HEAD")
    except GitError:
        parent = None
    with tempfile.TemporaryDirectory(prefix="osmosis-snapshot-") as scratch:
        index = Path(scratch) / "index"
        real = root / run_git(client, "rev-parse", "--git-path", "index")
        if real.is_file():
            shutil.copyfile(real, index)  # with its stat cache, so that unchanged files are not read again
        client.update_environment(GIT_INDEX_FILE=str(index))
        run_git(client, "add", "--all", "--", ":/")
        tree = run_git(client, "write-tree")
    client = git_at(root)
    parents = ["-p", parent] if parent else []
    commit = run_git(client, *identity_options(root), "commit-tree", tree, *parents, "-m", message)
    base = parent or run_git(client, "hash-object", "-t", "tree", "/dev/null")
    diff = run_git(client, "diff", "--no-color", "--no-ext-diff", base, commit)
    files = run_git(client, "diff", "--name-only", "-z", base, commit)
    names = tuple(shown(f) for f in files.split("\0") if f)
    return Snapshot(commit, parent, f"{SNAPSHOT_REFS}/{commit}", shown(diff), names)


def push_snapshot(root: Path, snapshot: Snapshot, *, remote: str = "origin") -> None:
    """Send a snapshot to the remote under its hidden ref. No local ref is made."""
    client = git_at(root)
    run_git(client, "push", "--quiet", remote, f"{snapshot.commit}:{snapshot.ref}", kill_after_timeout=PUSH_TIMEOUT_S)
