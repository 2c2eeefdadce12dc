"""What a job on another machine sends of its rollouts' files: piece by piece into a draft, put in place when whole.

A draft keeps what came before a cut, so only the rest is sent again. Sizes are bounded for the run as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

from osmosis.base import artifact_files
from osmosis.base.no_follow import are_parts
from osmosis.errors import TooLarge, ValidationError
from osmosis.platform import tables
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.slow_work import apart
from osmosis.records.wire_checks import check_rollout_id

from . import job_files, job_specs, resumed_file

MB = 1024 * 1024


class Incoming:
    """The files of one rollout of a run."""

    def __init__(self, settings: PlatformSettings, run: tables.Run, rollout_id: str) -> None:
        """ValidationError for an id that is none."""
        try:
            check_rollout_id(rollout_id)
        except ValueError as problem:
            raise ValidationError(str(problem), field="rollout_id") from None
        self._root = settings.runs_dir
        self._place = [*job_specs.folder_of(run).split("/"), "artifacts", rollout_id, "artifacts"]
        self._run_dir = settings.runs_dir / run.id
        self._drafts = job_files.folder_of(settings, run.id) / "artifacts" / rollout_id
        self._most = settings.sandbox.artifacts_mb * MB

    def there(self) -> dict[str, int]:
        """Bytes of each file, whole ones and drafts."""
        whole = artifact_files.listed(self._root, self._place, most_bytes=self._most) or []
        drafts = {}
        if self._drafts.is_dir():
            for name in self._drafts.glob("*.name"):
                draft = name.with_suffix(".part")
                drafts[name.read_text()] = draft.stat().st_size if draft.exists() else 0
        return {**drafts, **dict(whole)}

    async def take(self, path: str, size: int, offset: int, stream: AsyncIterator[bytes]) -> bool:
        """Adds to a file from `offset` on; whether it is whole now. Conflict when the draft ends elsewhere, TooLarge
        for what goes beyond the run's limit."""
        parts = [*self._place, *path.split("/")]
        if not are_parts(path.split("/")) or not 0 <= offset <= size:
            raise ValidationError(f"{path!r} is not the path of a file", field="path")
        await apart("files", self._check_room, size)
        draft = self._draft(path)
        if not await resumed_file.add(draft, stream, path=path, size=size, offset=offset):
            return False
        await apart("files", self._finish, draft, parts)
        return True

    def _draft(self, path: str) -> Path:
        self._drafts.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._drafts / f"{hashlib.sha256(path.encode()).hexdigest()}.part"
        draft.with_suffix(".name").write_text(path)
        return draft

    def _finish(self, draft: Path, parts: list[str]) -> None:
        placed = artifact_files.put(draft, self._root, parts)
        draft.with_suffix(".name").unlink(missing_ok=True)
        if not placed:
            draft.unlink(missing_ok=True)
            raise ValidationError(f"{'/'.join(parts[-3:])} cannot be stored: something else is in its place")

    def _check_room(self, size: int) -> None:
        used = sum(file.stat().st_size for file in self._run_dir.rglob("*") if file.is_file() and not file.is_symlink())
        if used + size > self._most:
            raise TooLarge(
                f"the artifacts of a run may have {self._most // MB} MB together; {used // MB} MB are there",
                hint="leave fewer or smaller files",
            )
