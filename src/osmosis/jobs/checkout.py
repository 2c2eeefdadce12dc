"""Brings the exact commit of a run into its work folder.

The checkout is made beside its place and renamed, so a folder that exists is complete; a later attempt at the same
run uses it again. It runs no hook of the repository, asks no question, and never follows a branch.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from osmosis.records.rollout import Category

from .commands import CommandResult, run_command
from .environ import git_environ
from .job import JobFailed, JobLog, setup_failed

STEP = "checkout"
FETCH_TIMEOUT_S = 600.0
SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "advice.detachedHead=false")


@dataclass(frozen=True, slots=True)
class Checkout:
    """A commit on disk. `rollout_dir` and `entrypoint` exist in it."""

    source: Path
    commit_sha: str
    rollout_dir: Path
    entrypoint: Path


@dataclass(frozen=True, slots=True)
class _Git:
    folder: Path
    environ: Mapping[str, str]
    log: JobLog

    async def __call__(self, *args: str) -> CommandResult:
        try:
            return await run_command(
                ("git", *SAFE, *args),
                cwd=self.folder,
                environ=self.environ,
                timeout_s=FETCH_TIMEOUT_S,
                log=self.log.stream(STEP, "debug") if args[0] in ("fetch", "checkout") else None,
            )
        except FileNotFoundError:
            raise setup_failed(
                "git is not installed where this job runs",
                fix="install git and submit the run again",
                category=Category.UNKNOWN,
            ) from None


async def check_out(
    repository: str,
    commit_sha: str,
    destination: Path,
    *,
    environ: Mapping[str, str],
    log: JobLog,
) -> Path:
    """The folder `destination` with exactly `commit_sha` of `repository` (a path or URL) and nothing else.

    Raises `JobFailed` when the repository cannot be read or no longer has the commit.
    """
    git_env = git_environ(environ)
    if await _usable(_Git(destination, git_env, log), commit_sha):
        log.write(STEP, f"using the checkout of {commit_sha[:12]} that is already there")
        return destination
    _need_repository(repository)
    making = destination.with_name(f".{destination.name}-{os.getpid()}")
    await asyncio.to_thread(_remove, making, destination)
    making.mkdir(parents=True)
    try:
        await _fetch(_Git(making, git_env, log), repository, commit_sha)
        making.rename(destination)
    finally:
        await asyncio.to_thread(_remove, making)
    log.write(STEP, f"checked out {commit_sha[:12]} of {display(repository)}")
    if (destination / ".gitmodules").exists():
        log.write(STEP, "the repository has submodules: they are not checked out", "warning")
    return destination


def locate(source: Path, commit_sha: str, rollout: str, entrypoint: str) -> Checkout:
    """The rollout's folder and entrypoint in a checkout. Raises `JobFailed` naming what is there instead."""
    rollouts = source / "rollouts"
    folder = rollouts / rollout
    at = f"commit {commit_sha[:12]}"
    if not folder.is_dir():
        there = sorted(p.name for p in rollouts.iterdir() if p.is_dir()) if rollouts.is_dir() else []
        raise setup_failed(
            f"rollouts/{rollout} does not exist in {at}; there: {', '.join(there) or 'no rollout at all'}",
            fix="set [experiment].rollout to one of these, or commit and push the rollout",
        )
    file = folder / entrypoint
    if not file.is_file():
        scripts = sorted(p.relative_to(folder).as_posix() for p in folder.glob("*.py"))
        raise setup_failed(
            f"rollouts/{rollout}/{entrypoint} does not exist in {at}; there: {', '.join(scripts) or 'no Python file'}",
            fix="set [experiment].entrypoint to one of these, or commit and push the file",
        )
    return Checkout(source=source, commit_sha=commit_sha, rollout_dir=folder, entrypoint=file)


def display(repository: str) -> str:
    """The repository as it may be shown: without user name and password."""
    parts = urlsplit(repository)
    if not parts.scheme or "@" not in parts.netloc:
        return repository
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


async def _usable(git: _Git, commit_sha: str) -> bool:
    """Whether the folder is this commit; files that an earlier attempt left or changed are put back."""
    if not (git.folder / ".git").is_dir():
        return False
    head = await git("rev-parse", "HEAD")
    if not head.ok or head.stdout.strip() != commit_sha:
        return False
    # Bytecode that an earlier attempt's server left does not make a difference.
    status = await git("status", "--porcelain", "--", ".", ":(exclude,glob)**/__pycache__/**")
    if status.ok and not status.stdout.strip():
        return True
    git.log.write(STEP, "the checkout was changed since: putting it back")
    for command in (("reset", "--quiet", "--hard", commit_sha), ("clean", "--quiet", "-ffd")):
        if not (await git(*command)).ok:
            return False
    return True


async def _fetch(git: _Git, repository: str, commit_sha: str) -> None:
    await _must(git, repository, "init", "--quiet", "--template=", ".")
    fetched = await git("fetch", "--quiet", "--no-tags", "--depth=1", repository, commit_sha)
    if not fetched.ok:
        # Some servers only hand out what a ref points at: then all history is needed to reach the commit.
        everything = ("fetch", "--quiet", "--no-tags", repository, "+refs/heads/*:refs/remotes/origin/*")
        complete = await git(*everything)
        if not complete.ok:
            raise _unreadable(repository, complete)
    known = await git("cat-file", "-e", f"{commit_sha}^{{commit}}")
    if not known.ok:
        raise setup_failed(
            f"commit {commit_sha[:12]} is no longer in {display(repository)}",
            fix="push the commit again (a force push may have removed it), or submit from a commit that is there",
            tail=_shown(fetched, repository),
        )
    await _must(git, repository, "checkout", "--quiet", "--force", "--detach", commit_sha)


async def _must(git: _Git, repository: str, *args: str) -> None:
    done = await git(*args)
    if not done.ok:
        raise setup_failed(
            f"git {args[0]} failed while checking out from {display(repository)}",
            category=Category.UNKNOWN,
            tail=_shown(done, repository),
        )


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


def _unreadable(repository: str, done: CommandResult) -> JobFailed:
    why = "took too long" if done.code is None else "cannot be read"
    return setup_failed(
        f"the repository {display(repository)} {why}",
        fix="check that it exists and that this machine may read it: `git ls-remote <url>`",
        category=Category.TIMEOUT if done.code is None else Category.CONNECTION,
        tail=_shown(done, repository),
    )


def _shown(done: CommandResult, repository: str) -> str:
    return done.output.replace(repository, display(repository))


def _remove(*folders: Path) -> None:
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)
