"""The workspace's git repository: reading starts no program that it configures; no credential of a URL leaves."""

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from osmosis.base import git as base_git
from osmosis.base.git import parse_git_url
from osmosis.base.redact import without_credentials
from osmosis.errors import ValidationError
from osmosis.records.run.source import FileFact, PinnedCommit, RolloutFiles, Source

if TYPE_CHECKING:
    from git import Repo

LARGE_FILE = 10 * 1024 * 1024
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
FALLBACK_NAME = "osmosis"
FALLBACK_EMAIL = "osmosis@localhost"
SNAPSHOT_REFS = "refs/osmosis/snapshots"
PUSH_TIMEOUT_S = 600
_READ_ONLY = ["core.fsmonitor=false", "core.hooksPath=/dev/null", "core.pager=cat"]
_MARKS = {
    "rebase-merge": "rebase",
    "rebase-apply/applying": "am",
    "rebase-apply": "rebase",
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}


@contextmanager
def open_repository(root: Path, *, read_only: bool = True) -> "Iterator[Repo]":
    """Open the repository that holds `root`; raise NoRepository, GitError. `read_only` starts no hook."""
    try:
        import git  # it looks for the program, and refuses to be imported where there is none
    except ModuleNotFoundError:
        raise
    except ImportError:
        raise base_git.GitMissing("git is not installed, or not on PATH", hint="install git 2.25 or newer") from None
    try:
        with git.Repo(root, search_parent_directories=True, expand_vars=False) as repo:
            repo.git = repo.GitCommandWrapperType(os.fspath(root))
            repo.git.update_environment(**base_git.QUIET)
            if read_only:
                repo.git.set_persistent_git_options(c=_READ_ONLY)
            yield repo
    except (git.InvalidGitRepositoryError, git.NoSuchPathError):
        raise base_git.no_repository() from None
    except git.GitCommandNotFound:
        raise base_git.GitMissing("git is not installed, or not on PATH", hint="install git 2.25 or newer") from None
    except git.GitCommandError as error:
        command, status = getattr(error, "command", ("git",)), getattr(error, "status", None)
        stderr, stdout = (
            str(getattr(error, name, "")).removeprefix(f"\n  {name}: '").removesuffix("'").strip()
            for name in ("stderr", "stdout")
        )
        text = without_credentials(stderr or stdout)
        raise base_git.explain_failure(tuple(command[1:]), text, status if isinstance(status, int) else 1) from None


def read_source(root: Path) -> Source | None:
    try:
        with open_repository(root) as repo:
            out = repo.git.status("--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--", ".")
            prefix = "" if (root / ".git").exists() else repo.git.rev_parse("--show-prefix")
            source = _parse_status(base_git.to_valid_text(out), base_git.to_valid_text(prefix))
            source.root = str(root)
            if source.detached or source.conflicts:
                marks = (name for mark, name in _MARKS.items() if Path(repo.git_dir, mark).exists())
                source.operation = next(marks, None)
            _add_remote(repo, source)
            return source
    except base_git.NoRepository:
        return None


def _add_remote(repo: "Repo", source: Source) -> None:
    head = repo.git.for_each_ref("--format=%(symref:short)", "refs/remotes/origin/HEAD")
    source.default_branch = head.partition("/")[2] or None
    if "origin" not in repo.git.remote().splitlines():
        return
    url = repo.git.remote("get-url", "origin")  # expands insteadOf, as a push and a clone do
    try:
        remote = parse_git_url(url)
    except ValidationError:
        source.remote_url = without_credentials(url)
        return
    source.remote_url, source.remote_host, source.identity = remote.display, remote.host, remote.identity


def _parse_status(out: str, prefix: str) -> Source:
    source = Source(root="", prefix=prefix)
    entries = iter(out.split("\0"))
    for entry in entries:
        kind, _, rest = entry.partition(" ")
        if kind == "#":
            key, _, value = rest.partition(" ")
            if key == "branch.oid":
                source.commit = None if value == "(initial)" else value
            elif key == "branch.head":
                source.detached = value == "(detached)"
                source.branch = None if source.detached else value
            elif key == "branch.upstream":
                source.upstream = value
            elif key == "branch.ab" and (counts := re.match(r"\+(\d+) -(\d+)", value)):
                source.ahead, source.behind = int(counts[1]), int(counts[2])
        elif kind == "1":
            source.dirty.append(_strip_prefix(prefix, rest.split(" ", 7)[-1]))
        elif kind == "u":
            source.dirty.append(_strip_prefix(prefix, rest.split(" ", 9)[-1]))
            source.conflicts.append(source.dirty[-1])
        elif kind == "2":
            source.dirty.append(_strip_prefix(prefix, rest.split(" ", 8)[-1]))
            if (old := _strip_prefix(prefix, next(entries, ""))) and old not in source.dirty:
                source.dirty.append(old)
        elif kind == "?":
            source.untracked.append(_strip_prefix(prefix, rest))
    return source


def _strip_prefix(prefix: str, path: str) -> str:
    return path[len(prefix) :] if prefix and path.startswith(prefix) else path


def read_rollout_files(root: Path, rollout: str, *, large: int = LARGE_FILE) -> RolloutFiles:
    folder = f"rollouts/{rollout}"
    facts = RolloutFiles(rollout=rollout)
    files: list[str] = []
    with open_repository(root) as repo:
        for entry in repo.git.ls_files("--stage", "-z", "--", folder).split("\0"):
            meta, _, path = entry.partition("\t")
            if not path:
                continue
            if meta.startswith("160000"):
                facts.submodules.append(base_git.to_valid_text(path))
                continue
            files.append(path)
            file = root / path
            try:
                size = file.lstat().st_size
                if size > large:
                    facts.large.append(FileFact(path=base_git.to_valid_text(path), size=size))
                elif size < 1024 and file.is_file():
                    with file.open("rb") as opened:
                        if opened.read(len(LFS_POINTER)) == LFS_POINTER:
                            facts.lfs.append(base_git.to_valid_text(path))
            except OSError:
                pass  # deleted in the working tree: the status says so
        facts.tracked = len(files)
        filtered = _list_lfs_attributes(repo, root, folder, files)
    facts.lfs = sorted({*facts.lfs, *map(base_git.to_valid_text, filtered)})
    return facts


def _list_lfs_attributes(repo: "Repo", root: Path, folder: str, paths: list[str]) -> list[str]:
    places = [root / ".gitattributes", *(root / folder).rglob(".gitattributes")]
    if not any(file.is_file() and "filter=lfs" in file.read_text("utf-8", "replace") for file in places):
        return []
    filtered = []
    for start in range(0, len(paths), 500):  # a command line has an end
        words = repo.git.check_attr("-z", "filter", "--", *paths[start : start + 500]).split("\0")
        filtered += [path for path, value in zip(words[0::3], words[2::3], strict=False) if value == "lfs"]
    return filtered


def find_pinned_commit(root: Path, sha: str, rollout: str, entrypoint: str) -> PinnedCommit:
    pin = PinnedCommit(asked=sha)
    with open_repository(root) as repo:
        pin.found, stderr = _resolve(repo, f"{sha}^{{commit}}")
        pin.ambiguous = "ambiguous" in stderr
        if pin.found:
            pin.on_remote = bool(repo.git.branch("--remotes", "--contains", pin.found))
            path = f"rollouts/{rollout}/{entrypoint}"
            pin.has_entrypoint = bool(repo.git.ls_tree("--name-only", "-z", pin.found, "--", path).strip("\0"))
    return pin


def _resolve(repo: "Repo", revision: str) -> tuple[str | None, str]:
    options = {"with_extended_output": True, "with_exceptions": False}
    _, commit, stderr = repo.git.rev_parse("--verify", "--quiet", revision, **options)
    return commit or None, stderr


def init_repository(root: Path) -> bool:
    if (root / ".git").exists():
        return False
    git = base_git.Git(root)
    git.text("init", "--quiet")
    # Not `init -b`: this works with every git, and before the first commit it only names the branch.
    git.text("symbolic-ref", "HEAD", "refs/heads/main")
    return True


def identity_options(root: Path) -> list[str]:
    """Return `-c` options with a stand-in author when git has no name for the person; else none."""
    try:
        base_git.Git(root).text("-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT")
        return []
    except base_git.GitError:
        return ["-c", f"user.name={FALLBACK_NAME}", "-c", f"user.email={FALLBACK_EMAIL}"]


def commit_paths(root: Path, message: str, paths: Sequence[str]) -> str | None:
    with open_repository(root, read_only=False) as repo:
        repo.git.add("--", *paths)
        if not repo.git.status("--porcelain", "--untracked-files=no", "--", *paths):
            return None
        repo.git(c=[option for option in identity_options(root) if option != "-c"]).commit(
            "--quiet", "-m", message, "--", *paths
        )
        return str(repo.git.rev_parse("HEAD"))


def set_remote(root: Path, url: str) -> None:
    with open_repository(root, read_only=False) as repo:
        existing = repo.git.remote().splitlines()
        repo.git.remote("set-url" if "origin" in existing else "add", "origin", url)


def set_credential_helper(root: Path, url: str, command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Have git ask `command` (with `environ`) for the credential of this URL's host, and nobody else; return the key
    that was set. An empty first value switches other helpers off, so that none stores the token."""
    key = f"credential.{_host(url)}.helper"
    words = [f"{name}={shlex.quote(value)}" for name, value in environ.items()]
    helper = "!" + " ".join([*words, *(shlex.quote(part) for part in command)])
    with open_repository(root, read_only=False) as repo:
        repo.git.config("--local", "--replace-all", key, "")
        repo.git.config("--local", "--add", key, helper)
    return key


def set_authority(root: Path, url: str, ca_file: str) -> None:
    with open_repository(root, read_only=False) as repo:
        repo.git.config("--local", "--replace-all", f"http.{_host(url)}.sslCAInfo", ca_file)


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def push(root: Path, branch: str, *, remote: str = "origin") -> None:
    git = base_git.Git(root)
    git.text("push", "--quiet", "--set-upstream", remote, branch, timeout_s=PUSH_TIMEOUT_S)
    if remote == "origin" and not git.text("for-each-ref", "refs/remotes/origin/HEAD"):
        git.text("symbolic-ref", "refs/remotes/origin/HEAD", f"refs/remotes/origin/{branch}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    commit: str
    parent: str | None
    ref: str
    diff: str
    files: tuple[str, ...]


def make_snapshot(root: Path, message: str = "snapshot of the working tree") -> Snapshot:
    """Store the working tree, untracked files included and ignored ones left out, as a commit on no branch. Branch,
    index and working tree stay as they are. Dated as its parent, so that the same tree is the same commit."""
    with open_repository(root) as repo, tempfile.TemporaryDirectory(prefix="osmosis-snapshot-") as scratch:
        parent, _ = _resolve(repo, "HEAD")
        index, current = Path(scratch) / "index", root / repo.git.rev_parse("--git-path", "index")
        if current.is_file():
            shutil.copyfile(current, index)  # with its stat cache, so that unchanged files are not read again
        with repo.git.custom_environment(GIT_INDEX_FILE=str(index)):
            repo.git.add("--all", "--", ":/")
            tree = repo.git.write_tree()
        date = f"@{repo.git.show('-s', '--format=%ct', parent) if parent else 0} +0000"
        author = [option for option in identity_options(root) if option != "-c"]
        with repo.git.custom_environment(GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date):
            commit = repo.git(c=author).commit_tree(tree, *(["-p", parent] if parent else []), "-m", message)
        base = parent or repo.git.hash_object("-t", "tree", "/dev/null")
        diff = repo.git.diff("--no-color", "--no-ext-diff", base, commit)
        files = repo.git.diff("--name-only", "-z", base, commit)
    names = tuple(base_git.to_valid_text(name) for name in files.split("\0") if name)
    return Snapshot(commit, parent, f"{SNAPSHOT_REFS}/{commit}", base_git.to_valid_text(diff), names)


def push_snapshot(root: Path, snapshot: Snapshot) -> None:
    refs = f"{snapshot.commit}:{snapshot.ref}"
    base_git.Git(root).text("push", "--quiet", "origin", refs, timeout_s=PUSH_TIMEOUT_S)
