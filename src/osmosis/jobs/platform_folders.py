"""What a training job without the platform's disk has of it: the base model, fetched once for the machine, and the
checkpoints of its run, in both directions.

Every file has a checksum and goes on where it was cut off; a folder appears when it is whole. What the platform has of
a run decides: checkpoints that it does not know are left over from a life that another machine went on from.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from osmosis.base.backoff import backoff_delay
from osmosis.base.checksum import file_sha256
from osmosis.base.locks import locked_async
from osmosis.errors import LeaseLost, NetworkError, OsmosisError, ValidationError
from osmosis.records.checkpoint_folder import MANIFEST, is_complete, read_manifest
from osmosis.records.contract.job_messages import JobCheckpoints, JobFile, JobFolder
from osmosis.records.rollout import Category
from osmosis.records.run import CheckpointReport

from .job import JobContext, setup_failed

STEP = "files"
TRIES = 3
MOST_TRIES = 20
_BLOCK = 1 << 20


async def fetch_folder(context: JobContext, folder: JobFolder, target: Path) -> None:
    """The folder as the platform has it, at `target`. Raises `JobFailed` for files that keep differing."""
    if target.is_dir():
        return
    draft = target.with_name(f".getting-{target.name}")
    for file in folder.files:
        place = draft / file.path
        if draft.resolve() not in place.resolve().parents:
            raise setup_failed(f"the platform names a file outside of {folder.name}", category=Category.UNKNOWN)
        for number in range(1, TRIES + 1):
            if await asyncio.to_thread(_is_there, place, file):
                break
            place.unlink(missing_ok=True)
            await context.reporter.save(f"folders/{quote(folder.name)}/{quote(file.path)}", place)
            if number == TRIES and not await asyncio.to_thread(_is_there, place, file):
                what = f"{file.path} of {folder.name} came {TRIES} times with another content than it should have"
                raise setup_failed(what, fix="retry the run", category=Category.CONNECTION)
    draft.rename(target)


async def fetch_model(context: JobContext, folder: JobFolder) -> Path:
    """A base model or a tokenizer: one copy for this machine, by what is in it."""
    content = hashlib.sha256("".join(f"{one.path}\0{one.sha256}\n" for one in folder.files).encode()).hexdigest()
    target = context.cache_dir / "models" / content[:32]
    async with locked_async(target.parent / ".locks" / target.name):
        if not target.is_dir():
            size = sum(file.size for file in folder.files)
            context.log.write(STEP, f"fetching the {folder.name} from the platform: {size / 1e6:,.1f} MB")
            await fetch_folder(context, folder, target)
    return target


async def fetch_checkpoints(context: JobContext, there: list[JobFolder], models_dir: Path, *, keep: bool) -> bool:
    """What the run goes on from: with `keep`, of which older ones are removed, all that there are, else the newest and
    the best. Whether one came that was not here."""
    models_dir.mkdir(parents=True, exist_ok=True)
    came = False
    for folder in there if keep else _chosen(there):
        target = models_dir / folder.name
        if target.is_dir() and not await asyncio.to_thread(_same, target, folder):
            await asyncio.to_thread(shutil.rmtree, target)
        if not target.is_dir():
            context.log.write(STEP, f"fetching the checkpoint {folder.name} from the platform")
            await fetch_folder(context, folder, target)
            came = True
    if came:
        known = {folder.name for folder in there}
        for left in models_dir.glob("step-*"):
            if left.name not in known:
                await asyncio.to_thread(shutil.rmtree, left)
    return came


def _chosen(there: list[JobFolder]) -> list[JobFolder]:
    ordered = sorted(there, key=lambda folder: folder.name)
    scored = [folder for folder in ordered if folder.reward is not None]
    best = max(scored, key=lambda folder: (folder.reward or 0.0, folder.name), default=None)
    return [folder for folder in ordered if folder is ordered[-1] or folder is best]


def _same(target: Path, folder: JobFolder) -> bool:
    """Whether it is complete, and the one that the platform has."""
    manifest = next((file for file in folder.files if file.path == MANIFEST), None)
    return manifest is not None and _is_there(target / MANIFEST, manifest) and is_complete(target)


def _is_there(place: Path, file: JobFile) -> bool:
    if not place.is_file() or place.stat().st_size != file.size:
        return False
    return file_sha256(place) == file.sha256


class CheckpointSender:
    """Checkpoints on their way to the platform, in order, while the training goes on. Use as an async context manager:
    at the end of the block those that were put are there, or the log says why one is not. On the platform's own disk
    they are only told."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._waiting: asyncio.Queue[CheckpointReport | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> CheckpointSender:
        self._task = asyncio.create_task(self._go())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._waiting.put_nowait(None)
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def put(self, saved: CheckpointReport) -> None:
        """It is complete here."""
        if self._context.spec.elsewhere:
            self._waiting.put_nowait(saved)
        else:
            self._context.reporter.checkpoint(saved)

    async def _go(self) -> None:
        while (saved := await self._waiting.get()) is not None:
            folder = Path(saved.path)
            try:
                await self._send(folder, saved)
            except LeaseLost:
                return
            except (OsmosisError, OSError) as problem:
                if folder.is_dir():  # else a newer one took its place
                    what = f"the checkpoint of step {saved.step} is not on the platform: {problem}"
                    self._context.log.write(STEP, what, "warning")

    async def _send(self, folder: Path, saved: CheckpointReport) -> None:
        told = saved.model_copy(
            update={"path": folder.name, "removed": [Path(removed).name for removed in saved.removed]}
        )
        manifest = await asyncio.to_thread(read_manifest, folder)
        sizes = {file.name: file.size for file in manifest.files}
        sizes[MANIFEST] = (folder / MANIFEST).stat().st_size
        for number in range(1, TRIES + 1):
            await self._send_files(folder, sizes)
            await self._context.reporter.flush()  # whoever goes on from it does nothing again that came before
            try:
                await self._context.reporter.tell("checkpoints", JobCheckpoints(checkpoints=[told]))
                return
            except ValidationError:
                if number == TRIES:
                    raise

    async def _send_files(self, folder: Path, sizes: dict[str, int]) -> None:
        for path, size in sizes.items():
            for number in range(1, MOST_TRIES + 1):
                there = await self._context.reporter.checkpoint_there(folder.name)
                offset = there.get(path, -1)
                if offset == size:
                    break
                start = offset if 0 < offset < size else 0
                try:
                    where = f"checkpoints/{folder.name}/{quote(path)}?size={size}&offset={start}"
                    await self._context.reporter.send(where, _pieces(folder / path, start))
                    break
                except NetworkError:
                    if number == MOST_TRIES:
                        raise
                    await asyncio.sleep(backoff_delay(number, base_s=0.25, max_s=10.0))


def _pieces(path: Path, offset: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while piece := file.read(_BLOCK):
            yield piece
