"""Files that jobs on other machines fetch (commit, rows) and send (artifacts). A git bundle and a file of rows are made
when first asked for, and go when the run is over. Artifacts come in pieces, which keep what came before a cut; the run
as a whole has a size limit."""

import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session, undefer

from osmosis.base import safe_open as artifact_files
from osmosis.base.files import draft_path
from osmosis.base.git import Git, GitError, sealed_environ
from osmosis.datasets.row_file import RowPart, cut_row_file
from osmosis.errors import Conflict, NotFound, PlatformError, TooLarge, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.background import run_apart
from osmosis.platform.datasets.stored_rows import make_row_file as write_row_file
from osmosis.platform.runs import lifecycle, rollouts
from osmosis.platform.settings import PlatformSettings
from osmosis.records.protocol.messages import check_rollout_id
from osmosis.records.run.rows import Shard

BUNDLE_S = 600.0


@dataclass(frozen=True, slots=True)
class FileSources:
    run_id: str
    repository: Path
    commit_sha: str
    parts: list[RowPart]
    rows: list[int]
    stored: list[str]


def load_sources(session: Session, settings: PlatformSettings, run_id: str) -> FileSources:
    run = session.get_one(tables.Run, run_id, options=[undefer(tables.Run.rows)])
    if (repository := run.repository) is None:
        raise NotFound("the repository of this run is no longer connected", hint="submit a new run")
    keys = sorted({row_key for _, row_key, _ in rollouts.list_keys(session, run.id)})
    return FileSources(run.id, settings.located(repository.path), run.commit_sha, run.list_row_parts(), run.rows, keys)


def make_bundle(settings: PlatformSettings, sources: FileSources) -> Path:
    target = folder_of(settings, sources.run_id) / "source.bundle"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        folder = Path(temporary)
        git = Git(folder, sealed_environ(settings.environ), timeout_s=BUNDLE_S)
        try:
            git.text("init", "--quiet", "--bare", "--template=", ".")
            (folder / "objects" / "info").mkdir(parents=True, exist_ok=True)
            (folder / "objects" / "info" / "alternates").write_text(f"{(sources.repository / 'objects').resolve()}\n")
            (folder / "shallow").write_text(f"{sources.commit_sha}\n")
            git.text("update-ref", "refs/heads/run", sources.commit_sha)
            git.text("bundle", "create", "--quiet", "run.bundle", "refs/heads/run")
        except GitError as problem:
            raise PlatformError(f"the commit of this run cannot be sent: {problem.message}") from problem
        (folder / "run.bundle").replace(target)
    return target


def make_row_file(platform: Platform, sources: FileSources, shard: Shard) -> Path:
    all_rows = _all_rows(platform, sources)
    if shard.count == 1:
        return all_rows
    part = all_rows.with_name(f"rows-{shard.number}-of-{shard.count}.jsonl")
    if not part.exists():
        cut_row_file(all_rows, part, shard.of(sources.rows))
    return part


def _all_rows(platform: Platform, sources: FileSources) -> Path:
    target = folder_of(platform.settings, sources.run_id) / "rows.jsonl"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = draft_path(target)
    draft.mkdir()
    try:
        write_row_file(platform.objects, sources.parts, draft, sources.stored).replace(target)
    except NotFound:
        raise NotFound("the dataset of this run was deleted", hint="submit a new run") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def folder_of(settings: PlatformSettings, run_id: str) -> Path:
    return settings.sent_dir / run_id


def forget(settings: PlatformSettings, run_id: str) -> None:
    shutil.rmtree(folder_of(settings, run_id), ignore_errors=True)


MB = 1024 * 1024


class IncomingArtifacts:
    def __init__(self, settings: PlatformSettings, run: tables.Run, rollout_id: str) -> None:
        try:
            check_rollout_id(rollout_id)
        except ValueError as problem:
            raise ValidationError(str(problem), field="rollout_id") from None
        self._root = settings.runs_dir
        self._place = [*lifecycle.work_folder(run).split("/"), "artifacts", rollout_id, "artifacts"]
        self._run_dir = settings.runs_dir / run.id
        self._drafts = folder_of(settings, run.id) / "artifacts" / rollout_id
        self._most = settings.sandbox.artifacts_mb * MB

    def list_sizes(self) -> dict[str, int]:
        complete = artifact_files.list_artifacts(self._root, self._place, most_bytes=self._most) or []
        drafts = {}
        if self._drafts.is_dir():
            for name in self._drafts.glob("*.name"):
                draft = name.with_suffix(".part")
                drafts[name.read_text()] = draft.stat().st_size if draft.exists() else 0
        return {**drafts, **dict(complete)}

    async def take(self, path: str, size: int, offset: int, stream: AsyncIterator[bytes]) -> bool:
        parts = [*self._place, *path.split("/")]
        if not artifact_files.are_parts(path.split("/")) or not 0 <= offset <= size:
            raise ValidationError(f"{path!r} is not the path of a file", field="path")
        await run_apart("files", self._check_room, size)
        draft = self._draft(path)
        if not await append_piece(draft, stream, path=path, size=size, offset=offset):
            return False
        await run_apart("files", self._finish, draft, parts)
        return True

    def _draft(self, path: str) -> Path:
        self._drafts.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._drafts / f"{hashlib.sha256(path.encode()).hexdigest()}.part"
        draft.with_suffix(".name").write_text(path)
        return draft

    def _finish(self, draft: Path, parts: list[str]) -> None:
        placed = artifact_files.store_artifact(draft, self._root, parts)
        draft.with_suffix(".name").unlink(missing_ok=True)
        if not placed:
            draft.unlink(missing_ok=True)
            raise ValidationError(f"{'/'.join(parts[-3:])} cannot be stored: something else is in its place")

    def _check_room(self, size: int) -> None:
        used = sum(file.stat().st_size for file in self._run_dir.rglob("*") if file.is_file() and not file.is_symlink())
        if used + size > self._most:
            message = f"the artifacts of a run may have {self._most // MB} MB together; {used // MB} MB are there"
            raise TooLarge(message, hint="leave fewer or smaller files")


async def append_piece(draft: Path, stream: AsyncIterator[bytes], *, path: str, size: int, offset: int) -> bool:
    """Append to the draft at `offset` and return whether all is there. Raise Conflict, TooLarge."""
    if offset and (not draft.exists() or draft.stat().st_size != offset):
        raise Conflict(f"{path}: what was sent before does not end at {offset}", hint="ask how much is there")
    written = offset
    with draft.open("ab" if offset else "wb") as out:
        async for piece in stream:
            written += len(piece)
            if written > size:
                raise TooLarge(f"{path} is larger than announced ({size} bytes)")
            out.write(piece)
    return written == size
