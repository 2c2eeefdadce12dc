"""The folders of a training run, for a job that shares no disk with us: its base model and tokenizer as they are here,
its checkpoints in both directions.

What is told of a folder is its files with their checksums, and nothing else of it can be asked for. A checkpoint comes
file by file into a draft, which keeps what came before a cut; it takes its place when every file is as its manifest
says. Reads no weights but to hash them.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base import artifact_files
from osmosis.base.checksum import file_sha256
from osmosis.base.files import write_text
from osmosis.base.model_folder import TOKENIZERS, model_files
from osmosis.base.no_follow import are_parts
from osmosis.errors import DiskFull, NotFound, TooLarge, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.objects.store import Objects
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.slow_work import apart
from osmosis.records.checkpoint_folder import MANIFEST, CheckpointManifest, read_manifest
from osmosis.records.contract.job_messages import JobFile, JobFolder
from osmosis.records.run import JobSpec

from . import checkpoints, job_files, models, resumed_file

GB = 1 << 30
MOST_BYTES = 256 * GB
"""Of one checkpoint: an adapter and its optimizer."""
MOST_FILES = 1000
MODEL, TOKENIZER = "model", "tokenizer"
PART = ".part"


@dataclass(frozen=True, slots=True)
class FoldersWanted:
    """Which folders a job may have; loaded first, because hashing takes longer than a session may."""

    run_id: str
    given: dict[str, Path]
    """By name: its base model and its tokenizer, as far as they are folders here."""
    sums: dict[str, list[dict[str, object]]]
    """By name: the files of a folder whose checksums are known already."""
    saved: list[Path]
    """Its checkpoints."""


def named(places: JobSpec) -> dict[str, str]:
    """Of the places that a job beside us would be told, those that are folders of this machine, by name."""
    found = {MODEL: places.model_path, TOKENIZER: places.tokenizer_path}
    return {name: place for name, place in found.items() if Path(place).is_absolute()}


def wanted_of(session: Session, settings: PlatformSettings, run: tables.Run, places: JobSpec) -> FoldersWanted:
    """`places` are those that a job beside us would be told."""
    given = {name: Path(place) for name, place in named(places).items()}
    sums = {}
    for name, folder in given.items():
        model = session.get(tables.BaseModel, folder.name)
        if model is not None and models.folder_of(settings, model.id) == folder:
            sums[name] = [dict(one) for one in model.files]
    query = sa.select(tables.Checkpoint).filter_by(run_id=run.id).order_by(tables.Checkpoint.step)
    kept = [one for one in session.scalars(query) if not (one.details or {}).get(checkpoints.REMOVED)]
    return FoldersWanted(run.id, given, sums, [settings.located(one.path) for one in kept])


def listed(platform: Platform, wanted: FoldersWanted) -> list[JobFolder]:
    """Every folder with its files. A checkpoint whose manifest is gone is left out."""
    found = []
    for name in wanted.given:
        files = wanted.sums.get(name)
        known = [JobFile.model_validate(one) for one in files] if files is not None else _summed(platform, wanted, name)
        chosen = [one for one in known if name == MODEL or _is_text(one.path)]
        found.append(JobFolder(name=name, files=chosen))
    for folder in wanted.saved:
        try:
            found.append(_checkpoint(platform, folder))
        except (NotFound, ValueError):
            continue
    return found


def opened(platform: Platform, wanted: FoldersWanted, name: str, path: str) -> Path:
    """A file of a folder, as `listed` has it; NotFound for every other."""
    folder = next((one for one in listed(platform, wanted) if one.name == name), None)
    if folder is None or path not in {one.path for one in folder.files}:
        raise NotFound(f"this run has no file {path!r} in a folder {name!r}")
    place = wanted.given.get(name) or next(one for one in wanted.saved if one.name == name)
    return _here(platform, place / path)


def _here(platform: Platform, path: Path) -> Path:
    """A copy on this machine. NotFound when there is none to be had."""
    settings = platform.settings
    if path.is_relative_to(settings.data_dir):
        return platform.objects.fetch(settings.stored(path))
    if not path.is_file():  # of a folder that the operator allows
        raise NotFound(f"{path.name} is no longer there")
    return path


def _checkpoint(platform: Platform, folder: Path) -> JobFolder:
    told = _here(platform, folder / MANIFEST)
    manifest = CheckpointManifest.model_validate_json(told.read_bytes())
    files = [JobFile(path=one.name, size=one.size, sha256=one.sha256) for one in manifest.files]
    files.append(JobFile(path=MANIFEST, size=told.stat().st_size, sha256=file_sha256(told)))
    return JobFolder(name=folder.name, files=files, reward=manifest.reward)


def _summed(platform: Platform, wanted: FoldersWanted, name: str) -> list[JobFile]:
    """Of a folder that the operator allows: hashed once for a run."""
    kept = job_files.folder_of(platform.settings, wanted.run_id) / f"{name}.json"
    try:
        return JobFolder.model_validate_json(kept.read_bytes()).files
    except (FileNotFoundError, ValueError):
        pass
    folder = wanted.given[name]
    if name == MODEL:
        paths = model_files(folder)
    else:
        paths = [path for path in sorted(folder.iterdir()) if path.is_file() and _is_text(path.name)]
    files = [JobFile(path=path.name, size=path.stat().st_size, sha256=file_sha256(path)) for path in paths]
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_text(kept, JobFolder(name=name, files=files).model_dump_json())
    return files


def _is_text(path: str) -> bool:
    """Whether it can belong to a tokenizer, which needs no weights."""
    return path in TOKENIZERS or path.endswith((".json", ".txt", ".jinja", ".model"))


class IncomingCheckpoint:
    """A checkpoint of a run, on its way from a job elsewhere."""

    def __init__(self, settings: PlatformSettings, run: tables.Run, name: str) -> None:
        """ValidationError for what is no name of one."""
        if not checkpoints.SENT.match(name):
            raise ValidationError(f"{name!r} is not the name of a checkpoint: step-000012", field="name")
        self._name, self._run = name, run.name
        self._draft = job_files.folder_of(settings, run.id) / "checkpoints" / name
        self._place = models.checkpoints_of(settings, run.id) / name

    def there(self) -> dict[str, int]:
        """Bytes of each file that came, whole or not; of a checkpoint that has taken its place, all."""
        folder = self._draft if self._draft.is_dir() or not self._place.is_dir() else self._place
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {path.relative_to(folder).as_posix().removesuffix(PART): path.stat().st_size for path in files}

    async def take(self, path: str, size: int, offset: int, stream: AsyncIterator[bytes]) -> bool:
        """Adds to a file from `offset` on; whether it is whole now. Conflict when the draft ends elsewhere, TooLarge
        for more than a checkpoint may have, DiskFull for more than fits here."""
        parts = path.split("/")
        if not are_parts(parts) or len(parts) > 4 or path.endswith(PART) or not 0 <= offset <= size:
            raise ValidationError(f"{path!r} is not the path of a file", field="path")
        await apart("files", self._check_room, path, size - offset)
        whole = self._draft.joinpath(*parts)
        draft = whole.with_name(f"{whole.name}{PART}")
        whole.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not await resumed_file.add(draft, stream, path=path, size=size, offset=offset):
            return False
        if not await apart("files", artifact_files.put, draft, self._draft, parts):
            raise ValidationError(f"{path} cannot be stored: something else is in its place", field="path")
        return True

    def place(self) -> None:
        """It takes its place among the run's checkpoints; one that has is left as it is. ValidationError says what is
        missing or differs: what came is dropped then, and can be sent again."""
        if not self._draft.is_dir() and self._place.is_dir():
            return
        try:
            manifest = read_manifest(self._draft)
            if manifest.run != self._run or self._name != f"step-{manifest.step:06d}":
                raise ValidationError(f"{self._name} is the checkpoint of another run or step")
            known = {MANIFEST, *(one.name for one in manifest.files)}
            if more := sorted(set(self.there()) - known):
                raise ValidationError(f"{self._name} has a file that its manifest does not name: {more[0]}")
        except ValidationError:
            shutil.rmtree(self._draft, ignore_errors=True)
            raise
        self._place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.rmtree(self._place, ignore_errors=True)
        self._draft.rename(self._place)

    def _check_room(self, path: str, more: int) -> None:
        sizes = self.there()
        if sum(sizes.values()) + more > MOST_BYTES or (path not in sizes and len(sizes) >= MOST_FILES):
            raise TooLarge(f"a checkpoint may have {MOST_FILES} files of {MOST_BYTES // GB} GB together")
        home = next(folder for folder in self._draft.parents if folder.is_dir())
        if more > (free := shutil.disk_usage(home).free):
            raise DiskFull(f"the platform's disk has {free / 1e9:.1f} GB free, and {more / 1e9:.1f} GB would come")


def unlisted(objects: Objects, settings: PlatformSettings, paths: Iterable[str]) -> None:
    """Deletes the files of checkpoints that went from the list; a job beside us has removed its own."""
    for path in paths:
        objects.delete(f"{settings.stored(settings.located(path))}/")
