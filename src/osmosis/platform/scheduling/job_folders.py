"""The folders of a training job on another machine: models, tokenizer, and checkpoints in both directions. Only
listed files can be fetched. A checkpoint comes file by file into a draft, which takes its place when every file matches
its manifest."""

import shutil
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base import safe_open as artifact_files
from osmosis.base.files import file_sha256, write_text
from osmosis.base.model_folder import TOKENIZERS, list_model_files
from osmosis.errors import DiskFull, NotFound, TooLarge, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.background import run_apart
from osmosis.platform.models import service as models
from osmosis.platform.objects.store import Objects
from osmosis.platform.scheduling import job_files
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.training import checkpoints
from osmosis.records.api.jobs import JobFile, JobFolder
from osmosis.records.run.checkpoint import MANIFEST, CheckpointManifest, read_manifest
from osmosis.records.run.job import JobSpec

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


def load_sources(session: Session, settings: PlatformSettings, run: tables.Run, places: JobSpec) -> FolderSources:
    folders = {name: Path(path) for name, path in name_folders(places).items()}
    sums = {}
    for name, folder in folders.items():
        model = session.get(tables.BaseModel, folder.name)
        if model is not None and models.folder_of(settings, model.id) == folder:
            sums[name] = [dict(row) for row in model.files]
    query = sa.select(tables.Checkpoint).filter_by(run_id=run.id).order_by(tables.Checkpoint.step)
    rows = [row for row in session.scalars(query) if not (row.details or {}).get(checkpoints.REMOVED)]
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
    cache = job_files.folder_of(platform.settings, sources.run_id) / f"{name}.json"
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
        if not checkpoints.SENT.match(name):
            raise ValidationError(f"{name!r} is not the name of a checkpoint: step-000012", field="name")
        self._name, self._run = name, run.name
        self._draft = job_files.folder_of(settings, run.id) / "checkpoints" / name
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
        if not await job_files.append_piece(draft, stream, path=path, size=size, offset=offset):
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
