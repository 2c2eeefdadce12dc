import asyncio
import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from osmosis.base.git import Git, GitError, GitMissing, GitTimeout
from osmosis.base.redact import without_credentials
from osmosis.base.safe_open import are_parts, folder_at, open_artifact
from osmosis.datasets.row_file import KnownRows, read_row_file
from osmosis.datasets.scan import read_rows
from osmosis.jobs.commands import git_environ
from osmosis.jobs.context import JobContext, JobLog, setup_failure
from osmosis.records.run.plan import Selection
from osmosis.records.run.rollout import Category
from osmosis.records.run.rows import Key, Row

STEP = "checkout"
FETCH_TIMEOUT_S = 600.0
MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Checkout:
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
    """Return `destination` with exactly `commit_sha` of `repository` (a path or URL) and nothing else. Without a
    repository, `bundle` writes a git bundle of the commit to the path it is given. Raise `JobFailed` when the
    repository cannot be read, lacks the commit, or has more than `most_mb` MB of files in it."""
    git = Git(destination, git_environ(environ), timeout_s=FETCH_TIMEOUT_S, own_group=True)
    if await _usable(git, commit_sha, log):
        log.write(STEP, f"using the checkout of {commit_sha[:12]} from an earlier attempt")
        return destination
    if bundle is None:
        host, colon, _ = repository.partition(":")
        local = "://" not in repository and not (colon and "/" not in host)
        if local and not Path(repository).is_dir():
            fix = "connect the workspace to a repository that exists, push, and submit again"
            message = f"the repository {repository} does not exist where this job runs"
            raise setup_failure(message, fix=fix, category=Category.CONNECTION)
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
        await _run_git(inside, where, "checkout", "--quiet", "--force", "--detach", commit_sha)
        making.rename(destination)
    except GitMissing:
        message = "git is not installed where this job runs"
        raise setup_failure(message, fix="install git and submit the run again", category=Category.UNKNOWN) from None
    finally:
        await asyncio.to_thread(_remove, making)
    where = f"of {without_credentials(repository)}" if repository else "as the platform sent it"
    log.write(STEP, f"checked out {commit_sha[:12]} {where}")
    if (destination / ".gitmodules").exists():
        log.write(STEP, "the repository has submodules, which are not checked out", "warning")
    attributes = open_artifact(destination, [".gitattributes"], most_bytes=MEGABYTE)
    if attributes is not None and b"filter=lfs" in b"".join(attributes.pieces()):
        log.write(STEP, "the repository has files of Git LFS, whose content is not fetched", "warning")
    return destination


def locate(
    source: Path, commit_sha: str, rollout: str, entrypoint: str, key: str = "[experiment].entrypoint"
) -> Checkout:
    rollouts = source / "rollouts"
    folder = rollouts / rollout
    at, available = f"commit {commit_sha[:12]}", list[str]()
    if not _is_folder(source, f"rollouts/{rollout}"):
        with contextlib.suppress(OSError), os.scandir(rollouts) as entries:
            available = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        message = f"rollouts/{rollout} does not exist in {at}; available: {', '.join(available) or 'none'}"
        raise setup_failure(message, fix="set [experiment].rollout to one of these, or commit and push the rollout")
    file = folder / entrypoint
    parent = PurePosixPath(f"rollouts/{rollout}/{entrypoint}").parent
    if not _is_folder(source, str(parent)) or file.is_symlink() or not file.is_file():
        scripts = sorted(path.name for path in folder.glob("*.py"))
        message = f"rollouts/{rollout}/{entrypoint} does not exist in {at}; available: {', '.join(scripts) or 'none'}"
        raise setup_failure(message, fix=f"set {key} to one of these, or commit and push the file")
    return Checkout(source=source, commit_sha=commit_sha, rollout_dir=folder, entrypoint=file)


def _is_folder(source: Path, path: str) -> bool:
    try:
        with folder_at(source, path.split("/")):
            return are_parts(path.split("/"))
    except OSError:
        return False


async def _usable(git: Git, commit_sha: str, log: JobLog) -> bool:
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
    await _run_git(git, repository, "init", "--quiet", "--template=", ".")
    try:
        await git.text_async("fetch", "--quiet", "--no-tags", "--depth=1", repository, commit_sha, log=log)
    except GitError as error:
        refused = error.stderr
        # Some servers only hand out what a ref points at: then all history is needed to reach the commit.
        everything = ("fetch", "--quiet", "--no-tags", repository, "+refs/heads/*:refs/remotes/origin/*")
        try:
            await git.text_async(*everything, log=log)
        except GitError as final:
            late = isinstance(final, GitTimeout)
            raise setup_failure(
                f"the repository {without_credentials(repository)} {'took too long' if late else 'cannot be read'}",
                fix="check that it exists and that this machine can read it: `git ls-remote <url>`",
                category=Category.TIMEOUT if late else Category.CONNECTION,
                tail=final.stderr,
            ) from None
        try:
            await git.text_async("cat-file", "-e", f"{commit_sha}^{{commit}}")
        except GitError:
            fix = "push the commit again (a force push may have removed it), or submit from another commit"
            message = f"commit {commit_sha[:12]} is no longer in {without_credentials(repository)}"
            raise setup_failure(message, fix=fix, tail=refused) from None


async def _unpack(git: Git, file: Path, commit_sha: str, bundle: Callable[[Path], Awaitable[None]]) -> None:
    await _run_git(git, "the platform", "init", "--quiet", "--template=", ".")
    await bundle(file)
    (file.parent / "shallow").write_text(f"{commit_sha}\n")
    refs = "+refs/heads/*:refs/remotes/origin/*"
    await _run_git(git, "the platform", "fetch", "--quiet", "--no-tags", str(file), refs)
    file.unlink()


async def _check_size(git: Git, commit_sha: str, most_mb: int) -> None:
    listed = await git.text_async("ls-tree", "-r", "-l", "--full-tree", commit_sha)
    sizes = (line.split(None, 4)[3] for line in listed.splitlines())
    total_mb = sum(int(size) for size in sizes if size.isdigit()) / MEGABYTE
    if total_mb > most_mb:
        raise setup_failure(
            f"commit {commit_sha[:12]} has {total_mb:.0f} MB of files, and a run may have {most_mb} MB",
            fix="keep large files out of the repository (upload data as a dataset), or ask the platform's operator "
            "to raise checkout_mb (--sandbox-limit)",
        )


async def _run_git(git: Git, repository: str, *args: str) -> None:
    try:
        await git.text_async(*args)
    except GitMissing:
        raise
    except GitError as error:
        message = f"git {args[0]} failed while checking out from {without_credentials(repository)}"
        raise setup_failure(message, category=Category.UNKNOWN, tail=error.stderr) from None


def _remove(*folders: Path) -> None:
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)


ROWS_FILE = "rows.jsonl"


@dataclass(frozen=True, slots=True)
class JobRows:
    path: Path
    known: KnownRows
    sent: bool

    @classmethod
    async def read(cls, context: JobContext, stored: Iterable[Key] = ()) -> "JobRows":
        """Read the keys, fetching rows that are not on this machine. Raise `DatasetError`."""
        spec = context.spec
        if spec.dataset_path:
            path, keys = Path(spec.dataset_path), list({row_key for _, row_key, _ in stored})
            known_rows = await asyncio.to_thread(KnownRows.of_dataset, path, spec.rows, keys)
            return cls(path, known_rows.only(spec.own_rows), sent=False)
        path = context.work_dir / ROWS_FILE
        if not path.exists():
            await context.reporter.save("dataset", path)
        return cls(path, await asyncio.to_thread(KnownRows.of_row_file, path), sent=True)

    def all(self, rows: Sequence[int]) -> Iterator[Row]:
        if self.sent:
            return read_row_file(self.path, rows)
        return read_rows(self.path, Selection(rows=list(rows)), by_id=self.known.by_id)

    async def at(self, indices: Sequence[int]) -> list[Row]:
        rows = await asyncio.to_thread(lambda: list(self.all(indices)))
        return [replace(row, key=self.known.keys.at[row.index]) for row in rows]
