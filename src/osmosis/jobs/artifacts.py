"""Files that rollouts leave: secrets are removed, then a job on another machine sends them to the platform."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote

from typing_extensions import Self

from osmosis.base.net import backoff_delay
from osmosis.base.redact import Redactor
from osmosis.base.safe_open import list_artifacts, open_artifact
from osmosis.errors import LeaseLost, NetworkError, OsmosisError
from osmosis.jobs.context import JobContext


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
