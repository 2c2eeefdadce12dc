"""Takes secrets out of the files that rollouts leave, of many rollouts in one step: one by one, a job does little else.
What untrusted code wrote is opened step by step, and never through a link (`Redactor.files`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from osmosis.base.redact import Redactor

GATHER_S = 0.005
"""How long the first rollout that has ended waits for others."""


class ArtifactCleaner:
    """The artifacts of one run, in `folder`."""

    def __init__(self, redactor: Redactor, folder: Path) -> None:
        self._redactor = redactor
        self._folder = folder
        self._waiting: list[str] = []
        self._next: asyncio.Task[None] | None = None

    async def clean(self, rollout_id: str) -> None:
        """Returns when the files that this rollout has left hold no secret."""
        self._waiting.append(rollout_id)
        if self._next is None:
            self._next = asyncio.create_task(self._together())
        await asyncio.shield(self._next)

    async def clean_all(self) -> None:
        """All files of the run."""
        await asyncio.to_thread(self._redactor.files, self._folder)

    async def _together(self) -> None:
        await asyncio.sleep(GATHER_S)
        waiting, self._waiting, self._next = self._waiting, [], None
        await asyncio.to_thread(self._redactor.folders, self._folder, waiting)
