"""Files between a job on another machine and the platform, without secrets; a folder appears when it is complete."""

import asyncio
import hashlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote

from typing_extensions import Self

from osmosis.base.files import file_sha256
from osmosis.base.locks import locked_async
from osmosis.base.net import backoff_delay
from osmosis.base.redact import Redactor
from osmosis.base.safe_open import list_artifacts, open_artifact
from osmosis.errors import LeaseLost, NetworkError, OsmosisError, ValidationError
from osmosis.jobs.context import JobContext, setup_failure
from osmosis.records.api.workers import JobCheckpoints, JobFile, JobFolder
from osmosis.records.run.job import CheckpointReport
from osmosis.records.run.rollout import Category
from osmosis.records.run.training import MANIFEST, is_complete, read_manifest


@dataclass(frozen=True, slots=True)
class ArtifactCleaner:
    redactor: Redactor
    folder: Path

    async def clean(self, *rollout_id: str) -> None:
        """Redact what a rollout left, or without its id what all of them left."""
        await asyncio.to_thread(self.redactor.files, self.folder, rollout_id)


MOST_TRIES = 20
T = TypeVar("T")


class BackgroundSender(ABC, Generic[T]):
    """Use as an async context manager: at its end every item was sent, or the log says why not."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._waiting: asyncio.Queue[T | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._send_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._waiting.put_nowait(None)
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def put(self, item: T) -> None:
        self._waiting.put_nowait(item)

    async def _send_all(self) -> None:
        while (item := await self._waiting.get()) is not None:
            try:
                await self._send(item)
            except LeaseLost:
                return
            except (OsmosisError, OSError) as problem:
                self._report(item, problem)

    @abstractmethod
    async def _send(self, item: T) -> None: ...

    @abstractmethod
    def _report(self, item: T, problem: Exception) -> None: ...


async def send_files(
    sizes: Mapping[str, int],
    list_stored: Callable[[], Awaitable[Mapping[str, int]]],
    send: Callable[[str, int], Awaitable[None]],
) -> None:
    """Send each file that the platform lacks, from the offset that it has. Raise `NetworkError` after many tries."""
    stored = await list_stored() if sizes else {}
    for path, size in sizes.items():
        for number in range(1, MOST_TRIES + 1):
            if stored.get(path) == size:
                break
            try:
                await send(path, stored.get(path, 0))
                break
            except NetworkError:
                if number == MOST_TRIES:
                    raise
                await asyncio.sleep(backoff_delay(number, base_s=0.25, max_s=10.0))
                stored = await list_stored()


class ArtifactSender(BackgroundSender[str]):
    """Sends the files of rollouts, by their ids; those that an earlier attempt left come first."""

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        self._root = context.work_dir
        self._most_bytes = context.spec.sandbox.artifacts_mb * 1024 * 1024
        if (earlier := self._root / "artifacts").is_dir():
            for folder in sorted(earlier.iterdir()):
                self.put(folder.name)

    def put(self, item: str) -> None:
        if self._context.spec.elsewhere:
            super().put(item)

    async def _send(self, item: str) -> None:
        parts = ["artifacts", item, "artifacts"]
        files = await asyncio.to_thread(list_artifacts, self._root, parts, most_bytes=self._most_bytes) or []

        async def send(path: str, offset: int) -> None:
            where = [*parts, *path.split("/")]
            file = await asyncio.to_thread(open_artifact, self._root, where, most_bytes=self._most_bytes)
            if file is not None:  # else it went meanwhile
                await self._context.reporter.send_artifact(item, path, file, offset if offset < file.size else 0)

        path = f"artifacts/{quote(item, safe='')}"
        await send_files(dict(files), partial(self._context.reporter.list_sizes, path), send)

    def _report(self, item: str, problem: Exception) -> None:
        message = f"the artifacts of rollout {item} are not sent: {problem}"
        self._context.log.write("artifacts", message, "warning")


STEP = "files"
TRIES = 3
_BLOCK = 1 << 20


async def fetch_folder(context: JobContext, folder: JobFolder, target: Path) -> None:
    if target.is_dir():
        return
    draft = target.with_name(f".getting-{target.name}")
    for file in folder.files:
        path = draft / file.path
        if draft.resolve() not in path.resolve().parents:
            raise setup_failure(f"the platform names a file outside of {folder.name}", category=Category.UNKNOWN)
        for number in range(1, TRIES + 1):
            if await asyncio.to_thread(_is_complete_file, path, file):
                break
            path.unlink(missing_ok=True)
            await context.reporter.save(f"folders/{quote(folder.name)}/{quote(file.path)}", path)
            if number == TRIES and not await asyncio.to_thread(_is_complete_file, path, file):
                message = f"{file.path} of {folder.name} came {TRIES} times with another content than it should have"
                raise setup_failure(message, fix="retry the run", category=Category.CONNECTION)
    draft.rename(target)


async def fetch_model(context: JobContext, folder: JobFolder) -> Path:
    """Fetch a base model or a tokenizer: one copy for this machine, named by its content."""
    content = hashlib.sha256("".join(f"{file.path}\0{file.sha256}\n" for file in folder.files).encode()).hexdigest()
    target = context.cache_dir / "models" / content[:32]
    async with locked_async(target.parent / ".locks" / target.name):
        if not target.is_dir():
            size = sum(file.size for file in folder.files)
            context.log.write(STEP, f"fetching the {folder.name} from the platform: {size / 1e6:,.1f} MB")
            await fetch_folder(context, folder, target)
    return target


async def fetch_checkpoints(context: JobContext, folders: list[JobFolder], models_dir: Path, *, keep_all: bool) -> bool:
    """Fetch the newest and the best checkpoint (or all) to resume from; return whether one came."""
    models_dir.mkdir(parents=True, exist_ok=True)
    fetched = False
    for folder in folders if keep_all else _choose_checkpoints(folders):
        target = models_dir / folder.name
        if target.is_dir() and not await asyncio.to_thread(_same, target, folder):
            await asyncio.to_thread(shutil.rmtree, target)
        if not target.is_dir():
            context.log.write(STEP, f"fetching the checkpoint {folder.name} from the platform")
            await fetch_folder(context, folder, target)
            fetched = True
    if fetched:
        names = {folder.name for folder in folders}
        for left in models_dir.glob("step-*"):
            if left.name not in names:
                await asyncio.to_thread(shutil.rmtree, left)
    return fetched


def _choose_checkpoints(folders: list[JobFolder]) -> list[JobFolder]:
    ordered = sorted(folders, key=lambda folder: folder.name)
    scored = [folder for folder in ordered if folder.reward is not None]
    best = max(scored, key=lambda folder: (folder.reward or 0.0, folder.name), default=None)
    return [folder for folder in ordered if folder is ordered[-1] or folder is best]


def _same(target: Path, folder: JobFolder) -> bool:
    manifest = next((file for file in folder.files if file.path == MANIFEST), None)
    return manifest is not None and _is_complete_file(target / MANIFEST, manifest) and is_complete(target)


def _is_complete_file(path: Path, file: JobFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return file_sha256(path) == file.sha256


class CheckpointSender(BackgroundSender[CheckpointReport]):
    """Sends checkpoints; on the platform's own disk, only reports them."""

    def put(self, item: CheckpointReport) -> None:
        if self._context.spec.elsewhere:
            super().put(item)
        else:
            self._context.reporter.checkpoint(item)

    async def _send(self, item: CheckpointReport) -> None:
        folder, reporter = Path(item.path), self._context.reporter
        removed = [Path(path).name for path in item.removed]
        report = item.model_copy(update={"path": folder.name, "removed": removed})
        manifest = await asyncio.to_thread(read_manifest, folder)
        sizes = {file.name: file.size for file in manifest.files}
        sizes[MANIFEST] = (folder / MANIFEST).stat().st_size

        async def send(path: str, offset: int) -> None:
            start = offset if offset < sizes[path] else 0
            where = f"checkpoints/{folder.name}/{quote(path)}?size={sizes[path]}&offset={start}"
            await reporter.send(where, _pieces(folder / path, start))

        for number in range(1, TRIES + 1):
            await send_files(sizes, partial(reporter.list_sizes, f"checkpoints/{folder.name}"), send)
            await reporter.flush()  # whoever goes on from it does nothing again that came before
            try:
                return await reporter.post("checkpoints", JobCheckpoints(checkpoints=[report]))
            except ValidationError:
                if number == TRIES:
                    raise

    def _report(self, item: CheckpointReport, problem: Exception) -> None:
        if Path(item.path).is_dir():  # else a newer one took its place
            message = f"the checkpoint of step {item.step} is not on the platform: {problem}"
            self._context.log.write(STEP, message, "warning")


def _pieces(path: Path, offset: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while piece := file.read(_BLOCK):
            yield piece
