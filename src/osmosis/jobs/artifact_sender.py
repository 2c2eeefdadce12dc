"""What rollouts leave, on its way from a job on another machine to the platform: file by file, resumed after a cut.

Files are what untrusted code wrote: links and everything that is not a plain file stay behind. A file that the platform
does not take is said in the log; the rollout counts all the same.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from osmosis.base.artifact_files import listed, opened
from osmosis.base.backoff import backoff_delay
from osmosis.errors import LeaseLost, NetworkError, OsmosisError

from .job import JobContext

MOST_TRIES = 20


class ArtifactSender:
    """Use as an async context manager: at the end of the block everything that was put is there, or the log says why
    it is not."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._root = context.work_dir
        self._most_bytes = context.spec.sandbox.artifacts_mb * 1024 * 1024
        self._waiting: asyncio.Queue[str | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._sent: set[str] = set()

    async def __aenter__(self) -> ArtifactSender:
        earlier = self._root / "artifacts"
        if earlier.is_dir():
            for folder in sorted(earlier.iterdir()):
                self.put(folder.name)
        self._task = asyncio.create_task(self._go())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._waiting.put_nowait(None)
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def put(self, rollout_id: str) -> None:
        """This rollout is over: what it left is sent."""
        if self._context.spec.elsewhere:
            self._waiting.put_nowait(rollout_id)

    async def _go(self) -> None:
        while (rollout_id := await self._waiting.get()) is not None:
            try:
                await self._send_all(rollout_id)
            except LeaseLost:
                return
            except OsmosisError as problem:
                what = f"the artifacts of rollout {rollout_id} are not sent: {problem.message}"
                self._context.log.write("artifacts", what, "warning")

    async def _send_all(self, rollout_id: str) -> None:
        place = ["artifacts", rollout_id, "artifacts"]
        found = await asyncio.to_thread(listed, self._root, place, most_bytes=self._most_bytes)
        if not found:
            return
        there = await self._context.reporter.stored_artifacts(rollout_id)
        for path, size in found:
            for number in range(1, MOST_TRIES + 1):
                if there.get(path) == size:
                    break
                try:
                    await self._send(rollout_id, [*place, *path.split("/")], path, there.get(path, 0))
                    break
                except NetworkError:
                    if number == MOST_TRIES:
                        raise
                    await asyncio.sleep(backoff_delay(number, base_s=0.25, max_s=10.0))
                    there = await self._context.reporter.stored_artifacts(rollout_id)

    async def _send(self, rollout_id: str, parts: list[str], path: str, offset: int) -> None:
        file = await asyncio.to_thread(opened, Path(self._root), parts, most_bytes=self._most_bytes)
        if file is not None:  # else it went meanwhile
            await self._context.reporter.send_artifact(rollout_id, path, file, offset if offset < file.size else 0)
