"""Brings the exact commit of a run into its work folder.

The checkout is made beside its place and renamed, so a folder that exists is complete; a later attempt at the same
run uses it again. It runs no hook of the repository, asks no question, and never follows a branch.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from osmosis.base.git import Git, GitError, GitMissing, GitTimeout
from osmosis.base.redact import without_credentials
from osmosis.records.rollout import Category

from .environ import git_environ
from .job import JobFailed, JobLog, setup_failed

STEP = "checkout"
FETCH_TIMEOUT_S = 600.0
MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Checkout:
    """A commit on disk. `rollout_dir` and `entrypoint` exist in it."""

    source: Path
    commit_sha: str
    rollout_dir: Path
    entrypoint: Path


async def check_out(
    repository: str,
    commit_sha: str,
    destination: Path,
    *,
    environ: Mapping[str, str],
    log: JobLog,
    bundle: Callable[[Path], Awaitable[None]] | None = None,
    most_mb: int | None = None,
) -> Path:
    """The folder `destination` with exactly `commit_sha` of `repository` (a path or URL) and nothing else.

    Without a repository, `bundle` puts a git bundle of the commit where it is told. Raises `JobFailed` when the
    repository cannot be read, no longer has the commit, or has more than `most_mb` of files in it.
    """
    git = Git(destination, git_environ(environ), timeout_s=FETCH_TIMEOUT_S, own_group=True)
    if await _usable(git, commit_sha, log):
        log.write(STEP, f"using the checkout of {commit_sha[:12]} from an earlier attempt")
        return destination
    if bundle is None:
        _need_repository(repository)
    making = destination.with_name(f".{destination.name}-{os.getpid()}")
    await asyncio.to_thread(_remove, making, destination)
    making.mkdir(parents=True)
    try:
        inside = replace(git, cwd=making)
        if bundle is None:
            await _fetch(inside, repository, commit_sha, log.stream(STEP, "debug"))
        else:
            await _unpack(inside, making / ".git" / "sent.bundle", commit_sha, bundle)
        if most_mb is not None:
            await _check_size(inside, commit_sha, most_mb)
        where = repository or "the platform"
        await _must(inside, where, "checkout", "--quiet", "--force", "--detach", commit_sha)
        making.rename(destination)
    except GitMissing:
        raise setup_failed(
            "git is not installed where this job runs",
            fix="install git and submit the run again",
            category=Category.UNKNOWN,
        ) from None
    finally:
        await asyncio.to_thread(_remove, making)
    where = f"of {without_credentials(repository)}" if repository else "as the platform sent it"
    log.write(STEP, f"checked out {commit_sha[:12]} {where}")
    if (destination / ".gitmodules").exists():
        log.write(STEP, "the repository has submodules, which are not checked out", "warning")
    return destination


def locate(source: Path, commit_sha: str, rollout: str, entrypoint: str) -> Checkout:
    """The rollout's folder and entrypoint in a checkout. Raises `JobFailed` naming what is there instead."""
    rollouts = source / "rollouts"
    folder = rollouts / rollout
    at = f"commit {commit_sha[:12]}"
    if not folder.is_dir():
        there = sorted(p.name for p in rollouts.iterdir() if p.is_dir()) if rollouts.is_dir() else []
        raise setup_failed(
            f"rollouts/{rollout} does not exist in {at}; available: {', '.join(there) or 'none'}",
            fix="set [experiment].rollout to one of these, or commit and push the rollout",
        )
    file = folder / entrypoint
    if not file.is_file():
        scripts = sorted(p.relative_to(folder).as_posix() for p in folder.glob("*.py"))
        raise setup_failed(
            f"rollouts/{rollout}/{entrypoint} does not exist in {at}; available: {', '.join(scripts) or 'none'}",
            fix="set [experiment].entrypoint to one of these, or commit and push the file",
        )
    return Checkout(source=source, commit_sha=commit_sha, rollout_dir=folder, entrypoint=file)


async def _usable(git: Git, commit_sha: str, log: JobLog) -> bool:
    """Whether the folder is this commit; files that an earlier attempt left or changed are put back."""
    if git.cwd is None or not (git.cwd / ".git").is_dir():
        return False
    try:
        if await git.text_async("rev-parse", "HEAD") != commit_sha:
            return False
        # Bytecode that an earlier attempt's server left does not make a difference.
        if not await git.text_async("status", "--porcelain", "--", ".", ":(exclude,glob)**/__pycache__/**"):
            return True
        log.write(STEP, "the checkout has changed since: restoring it")
        await git.text_async("reset", "--quiet", "--hard", commit_sha)
        await git.text_async("clean", "--quiet", "-ffd")
    except GitError:
        return False
    return True


async def _fetch(git: Git, repository: str, commit_sha: str, log: Callable[[str], None]) -> None:
    await _must(git, repository, "init", "--quiet", "--template=", ".")
    try:
        await git.text_async("fetch", "--quiet", "--no-tags", "--depth=1", repository, commit_sha, log=log)
    except GitError as error:
        refused = error.stderr
        # Some servers only hand out what a ref points at: then all history is needed to reach the commit.
        everything = ("fetch", "--quiet", "--no-tags", repository, "+refs/heads/*:refs/remotes/origin/*")
        try:
            await git.text_async(*everything, log=log)
        except GitError as final:
            raise _unreadable(repository, final) from None
        await _need_commit(git, repository, commit_sha, refused)


async def _need_commit(git: Git, repository: str, commit_sha: str, refused: str) -> None:
    """After a fetch of everything: one of the commit alone has it, or fails."""
    try:
        await git.text_async("cat-file", "-e", f"{commit_sha}^{{commit}}")
    except GitError:
        raise setup_failed(
            f"commit {commit_sha[:12]} is no longer in {without_credentials(repository)}",
            fix="push the commit again (a force push may have removed it), or submit from another commit",
            tail=refused,
        ) from None


async def _unpack(git: Git, file: Path, commit_sha: str, bundle: Callable[[Path], Awaitable[None]]) -> None:
    """The bundle has the commit without its history, so the repository is told that it begins there."""
    await _must(git, "the platform", "init", "--quiet", "--template=", ".")
    await bundle(file)
    (file.parent / "shallow").write_text(f"{commit_sha}\n")
    await _must(git, "the platform", "fetch", "--quiet", "--no-tags", str(file), "+refs/heads/*:refs/remotes/origin/*")
    file.unlink()


async def _check_size(git: Git, commit_sha: str, most_mb: int) -> None:
    """What a repository has packed small may be large on the disk."""
    listed = await git.text_async("ls-tree", "-r", "-l", "--full-tree", commit_sha)
    sizes = (line.split(None, 4)[3] for line in listed.splitlines())
    found = sum(int(size) for size in sizes if size.isdigit()) / MEGABYTE
    if found > most_mb:
        raise setup_failed(
            f"commit {commit_sha[:12]} has {found:.0f} MB of files, and a run may have {most_mb} MB",
            fix="keep large files out of the repository (upload data as a dataset), or ask the platform's operator "
            "to raise checkout_mb (--sandbox-limit)",
        )


async def _must(git: Git, repository: str, *args: str) -> None:
    try:
        await git.text_async(*args)
    except GitMissing:
        raise
    except GitError as error:
        raise setup_failed(
            f"git {args[0]} failed while checking out from {without_credentials(repository)}",
            category=Category.UNKNOWN,
            tail=error.stderr,
        ) from None


def _need_repository(repository: str) -> None:
    local = "://" not in repository and not _is_scp_like(repository)
    if local and not Path(repository).is_dir():
        raise setup_failed(
            f"the repository {repository} does not exist where this job runs",
            fix="connect the workspace to a repository that exists, push, and submit again",
            category=Category.CONNECTION,
        )


def _is_scp_like(repository: str) -> bool:
    host, colon, _ = repository.partition(":")
    return bool(colon) and "/" not in host


def _unreadable(repository: str, error: GitError) -> JobFailed:
    late = isinstance(error, GitTimeout)
    return setup_failed(
        f"the repository {without_credentials(repository)} {'took too long' if late else 'cannot be read'}",
        fix="check that it exists and that this machine can read it: `git ls-remote <url>`",
        category=Category.TIMEOUT if late else Category.CONNECTION,
        tail=error.stderr,
    )


def _remove(*folders: Path) -> None:
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)
