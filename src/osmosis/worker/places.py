"""Under which ids the workers of a folder are known to their platform, so that one that starts takes over from those
that are gone, and from no other."""

from __future__ import annotations

from pathlib import Path

from osmosis.base.locks import FileLock


class WorkerPlaces:
    """The ids under which the workers of a folder are known: each in a file of its own, held by a lock as long as its
    worker lives. A new worker takes the first place that is free, and the jobs of every other one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: FileLock | None = None
        self._file: Path | None = None

    def take(self) -> list[str]:
        """The ids of workers that are gone, the one whose place this is now first."""
        if self._file is not None:
            return [found] if (found := _read(self._file)) else []
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ids = []
        for number in self._numbers():
            file, lock = self._folder / f"worker-{number}", FileLock(self._folder / f"worker-{number}.lock")
            if not lock.take():
                continue  # its worker lives
            if found := _read(file):
                ids.append(found)
            if self._held is None:
                self._held, self._file = lock, file
            else:
                file.unlink(missing_ok=True)
                lock.release()
        return ids

    def _numbers(self) -> list[int]:
        """Those that were ever used here, and the next one."""
        used = sorted(int(file.stem.removeprefix("worker-")) for file in self._folder.glob("worker-*.lock"))
        return [*used, max(used, default=0) + 1]

    def remember(self, worker_id: str) -> None:
        assert self._file is not None
        self._file.write_text(worker_id)

    def leave(self) -> None:
        if self._held is not None:
            self._held.release()
        self._held = self._file = None


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()[:100]
    except OSError:
        return ""
