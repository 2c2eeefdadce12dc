"""Models and checkpoints of a training job off the platform's disk, fetched and sent. Every file has a checksum and is
continued where it was cut off; a folder appears when it is complete. Checkpoints that the platform does not know are
left over from a job whose run another machine took over."""

import asyncio
import hashlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

from osmosis.base.files import file_sha256
from osmosis.base.locks import locked_async
from osmosis.errors import ValidationError
from osmosis.jobs.artifacts import BackgroundSender, send_files
from osmosis.jobs.context import JobContext, setup_failure
from osmosis.records.api.jobs import JobCheckpoints, JobFile, JobFolder
from osmosis.records.run.checkpoint import MANIFEST, is_complete, read_manifest
from osmosis.records.run.job import CheckpointReport
from osmosis.records.run.rollout import Category

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
    content = hashlib.sha256("".join(f"{one.path}\0{one.sha256}\n" for one in folder.files).encode()).hexdigest()
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
