"""Results that could not be delivered, on disk until they can. Each server process owns one folder of the spool
under a file lock; at the next start the folders of dead processes are taken over. A spooled result holds the bearer
of its callback, so folders are 0700 and files 0600; nothing else is ever written here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

log = logging.getLogger("osmosis.serve")

REFUSED = "refused"
MAX_AGE_S = 7 * 24 * 3600
"""Older results are put aside: nobody waits for them any more."""


@dataclass(frozen=True)
class Post:
    """One message to a trainer: sent until it is acknowledged."""

    rollout_id: str
    url: str
    body: str
    bearer: str | None = None


class Spool:
    """A folder of undelivered posts. `root` is made on the first use, never before."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._own: Path | None = None
        self._lock: int | None = None
        self._adopted: list[tuple[Path, int]] = []

    def add(self, post: Post) -> Path:
        """Writes one post durably and returns its file; the same post is the same file."""
        folder = self._own_folder()
        digest = hashlib.sha256(f"{post.rollout_id}\0{post.url}\0{post.body}".encode()).hexdigest()[:32]
        path = folder / f"{digest}.json"
        if path.exists():
            return path
        partial = folder / f"{digest}.partial"
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(post), file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        return path

    def refuse(self, path: Path) -> None:
        """The receiver will never take it: kept aside for a person, not sent again."""
        aside = self.root / REFUSED
        aside.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.rename(aside / path.name)

    def adopt(self) -> Iterator[tuple[Path, Post]]:
        """What dead processes left behind, oldest first; their folders are locked until `close`."""
        found: list[Path] = []
        for folder in sorted(self.root.glob("server-*")) if self.root.is_dir() else []:
            if folder == self._own or (lock := _try_lock(folder)) is None:
                continue
            self._adopted.append((folder, lock))
            found.extend(folder.glob("*.json"))
        now = time.time()
        for path in sorted(found, key=lambda file: file.stat().st_mtime_ns):
            if now - path.stat().st_mtime > MAX_AGE_S:
                self.refuse(path)
                continue
            try:
                yield path, Post(**json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, TypeError) as exc:
                log.warning("%s is not a spooled result (%s); left in place", path, exc)

    def close(self) -> None:
        """Gives the folders back; empty ones are removed."""
        for folder, lock in self._adopted:
            _leave(folder, lock)
        self._adopted.clear()
        if self._own is not None and self._lock is not None:
            _leave(self._own, self._lock)
        self._own = self._lock = None

    def _own_folder(self) -> Path:
        if self._own is None:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = self.root / f"server-{os.getpid()}-{secrets.token_hex(4)}"
            folder.mkdir(mode=0o700)
            self._own, self._lock = folder, _try_lock(folder)
        return self._own


def _try_lock(folder: Path) -> int | None:
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _leave(folder: Path, lock: int) -> None:
    if not any(folder.glob("*.json")):
        for rest in folder.iterdir():
            rest.unlink(missing_ok=True)
        folder.rmdir()
    os.close(lock)
