"""Files that jobs on other machines fetch and send. Artifacts come in pieces, which keep what came before a cut; a
checkpoint takes its place when every file matches its manifest."""

import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session, undefer

from osmosis.base import safe_open as artifact_files
from osmosis.base.files import draft_path, file_sha256, write_text
from osmosis.base.git import Git, GitError, sealed_environ
from osmosis.base.model_folder import TOKENIZERS, list_model_files
from osmosis.datasets.row_file import RowPart, cut_row_file
from osmosis.errors import Conflict, DiskFull, NotFound, PlatformError, TooLarge, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.background import run_apart
from osmosis.platform.datasets.service import make_row_file as write_row_file
from osmosis.platform.models import service as models
from osmosis.platform.objects.store import Objects
from osmosis.platform.runs import lifecycle, rollouts
from osmosis.platform.settings import PlatformSettings
from osmosis.records.api.workers import JobFile, JobFolder
from osmosis.records.protocol.messages import check_rollout_id
from osmosis.records.run.job import JobSpec
from osmosis.records.run.rows import Shard
from osmosis.records.run.training import MANIFEST, CheckpointManifest, read_manifest

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


GB = 1 << 30
MOST_BYTES = 256 * GB
MOST_FILES = 1000
MODEL, TOKENIZER, TEACHER, ADAPTER = "model", "tokenizer", "teacher", "adapter"
PART = ".part"


@dataclass(frozen=True, slots=True)
class FolderSources:
    """The folders that a job may have; loaded first, since hashing takes longer than a session may."""

    run_id: str
    given: dict[str, Path]
    sums: dict[str, list[dict[str, object]]]
    saved: list[Path]


def name_folders(places: JobSpec) -> dict[str, str]:
    paths = {MODEL: places.model_path, TOKENIZER: places.tokenizer_path, TEACHER: places.teacher_path}
    if places.kind == "training":
        paths[ADAPTER] = places.adapter_path
    return {name: path for name, path in paths.items() if Path(path).is_absolute()}


def load_folder_sources(
    session: Session, settings: PlatformSettings, run: tables.Run, places: JobSpec
) -> FolderSources:
    folders = {name: Path(path) for name, path in name_folders(places).items()}
    sums = {}
    for name, folder in folders.items():
        model = session.get(tables.BaseModel, folder.name)
        if model is not None and models.folder_of(settings, model.id) == folder:
            sums[name] = [dict(row) for row in model.files]
    query = sa.select(tables.Checkpoint).filter_by(run_id=run.id).order_by(tables.Checkpoint.step)
    rows = [row for row in session.scalars(query) if not (row.details or {}).get(models.REMOVED)]
    return FolderSources(run.id, folders, sums, [settings.located(row.path) for row in rows])


def list_folders(platform: Platform, sources: FolderSources) -> list[JobFolder]:
    folders = []
    for name in sources.given:
        files = sources.sums.get(name)
        items = (
            [JobFile.model_validate(item) for item in files]
            if files is not None
            else _hash_once(platform, sources, name)
        )
        chosen = [item for item in items if name != TOKENIZER or _is_text(item.path)]
        folders.append(JobFolder(name=name, files=chosen))
    for folder in sources.saved:
        try:
            manifest_path = _fetch(platform, folder / MANIFEST)
            manifest = CheckpointManifest.model_validate_json(manifest_path.read_bytes())
            saved = [JobFile(path=item.name, size=item.size, sha256=item.sha256) for item in manifest.files]
            saved.append(JobFile(path=MANIFEST, size=manifest_path.stat().st_size, sha256=file_sha256(manifest_path)))
            folders.append(JobFolder(name=folder.name, files=saved, reward=manifest.reward))
        except (NotFound, ValueError):
            continue
    return folders


def get_file(platform: Platform, sources: FolderSources, name: str, path: str) -> Path:
    folder = next((item for item in list_folders(platform, sources) if item.name == name), None)
    if folder is None or path not in {item.path for item in folder.files}:
        raise NotFound(f"this run has no file {path!r} in a folder {name!r}")
    root = sources.given.get(name) or next(item for item in sources.saved if item.name == name)
    return _fetch(platform, root / path)


def _fetch(platform: Platform, path: Path) -> Path:
    settings = platform.settings
    if path.is_relative_to(settings.data_dir):
        return platform.objects.fetch(settings.stored(path))
    if not path.is_file():  # of a folder that the operator allows
        raise NotFound(f"{path.name} is no longer there")
    return path


def _hash_once(platform: Platform, sources: FolderSources, name: str) -> list[JobFile]:
    cache = folder_of(platform.settings, sources.run_id) / f"{name}.json"
    try:
        return JobFolder.model_validate_json(cache.read_bytes()).files
    except (FileNotFoundError, ValueError):
        pass
    folder = sources.given[name]
    if name in (MODEL, TEACHER):
        paths = list_model_files(folder)
    elif name == ADAPTER:
        paths = [folder / "adapter_config.json", folder / models.ADAPTER]
    else:
        paths = [path for path in sorted(folder.iterdir()) if path.is_file() and _is_text(path.name)]
    files = [JobFile(path=path.name, size=path.stat().st_size, sha256=file_sha256(path)) for path in paths]
    cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_text(cache, JobFolder(name=name, files=files).model_dump_json())
    return files


def _is_text(path: str) -> bool:
    return path in TOKENIZERS or path.endswith((".json", ".txt", ".jinja", ".model"))


class IncomingCheckpoint:
    def __init__(self, settings: PlatformSettings, run: tables.Run, name: str) -> None:
        if not models.SENT.match(name):
            raise ValidationError(f"{name!r} is not the name of a checkpoint: step-000012", field="name")
        self._name, self._run = name, run.name
        self._draft = folder_of(settings, run.id) / "checkpoints" / name
        self._place = models.checkpoints_of(settings, run.id) / name

    def list_sizes(self) -> dict[str, int]:
        folder = self._draft if self._draft.is_dir() or not self._place.is_dir() else self._place
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {path.relative_to(folder).as_posix().removesuffix(PART): path.stat().st_size for path in files}

    async def take(self, path: str, size: int, offset: int, stream: AsyncIterator[bytes]) -> bool:
        parts = path.split("/")
        if not artifact_files.are_parts(parts) or len(parts) > 4 or path.endswith(PART) or not 0 <= offset <= size:
            raise ValidationError(f"{path!r} is not the path of a file", field="path")
        await run_apart("files", self._check_room, path, size - offset)
        complete = self._draft.joinpath(*parts)
        draft = complete.with_name(f"{complete.name}{PART}")
        complete.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not await append_piece(draft, stream, path=path, size=size, offset=offset):
            return False
        if not await run_apart("files", artifact_files.store_artifact, draft, self._draft, parts):
            raise ValidationError(f"{path} cannot be stored: something else is in its place", field="path")
        return True

    def publish(self) -> None:
        """Move the draft among the run's checkpoints; raise ValidationError and delete one that differs."""
        if not self._draft.is_dir() and self._place.is_dir():
            return
        try:
            manifest = read_manifest(self._draft)
            if manifest.run != self._run or self._name != f"step-{manifest.step:06d}":
                raise ValidationError(f"{self._name} is the checkpoint of another run or step")
            names = {MANIFEST, *(item.name for item in manifest.files)}
            if more := sorted(set(self.list_sizes()) - names):
                raise ValidationError(f"{self._name} has a file that its manifest does not name: {more[0]}")
        except ValidationError:
            shutil.rmtree(self._draft, ignore_errors=True)
            raise
        self._place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.rmtree(self._place, ignore_errors=True)
        self._draft.rename(self._place)

    def _check_room(self, path: str, more: int) -> None:
        sizes = self.list_sizes()
        if sum(sizes.values()) + more > MOST_BYTES or (path not in sizes and len(sizes) >= MOST_FILES):
            raise TooLarge(f"a checkpoint may have {MOST_FILES} files of {MOST_BYTES // GB} GB together")
        home = next(folder for folder in self._draft.parents if folder.is_dir())
        if more > (free := shutil.disk_usage(home).free):
            raise DiskFull(f"the platform's disk has {free / 1e9:.1f} GB free, and {more / 1e9:.1f} GB would come")


def delete_unlisted(objects: Objects, settings: PlatformSettings, paths: Iterable[str]) -> None:
    for path in paths:
        objects.delete(f"{settings.stored(settings.located(path))}/")
