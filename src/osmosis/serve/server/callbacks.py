"""Callbacks that deliver results: 2xx is success, 429, 408, 425 and 5xx are tried again with jitter and `Retry-After`,
other answers are final. What cannot be delivered is spooled to disk, and sent again at the next start. Posts of one
rollout keep their order; a repeated post is byte for byte the same. Each process owns one folder of its server's spool
under a file lock; the folders of dead processes are adopted. A spooled result holds the bearer of its callback: folders
are 0700 and files 0600."""

import asyncio
import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from osmosis.base.files import write_json
from osmosis.base.locks import FileLock
from osmosis.base.net import backoff_delay, parse_retry_after
from osmosis.base.processes import end_tasks
from osmosis.llm.http import HttpEndpoint, HttpPool

log = logging.getLogger("osmosis.serve")

REFUSED = "refused"
_PLAIN = " !#$&'()*+,/:;=?@[]_.-~"
"""Characters of a header's value that need no quoting."""
MAX_AGE_S = 24 * 3600.0  # Seconds; older results are set aside: no client waits for them any more


def spool_folder(root: Path, agent: str) -> Path:
    folder = Path.cwd()
    digest = hashlib.sha256(f"{folder}\0{agent}".encode()).hexdigest()[:16]
    label = re.sub(r"[^A-Za-z0-9.]+", "-", f"{folder.name}-{agent}").strip("-.")
    return root / f"{label[:80]}-{digest}"


@dataclass(frozen=True)
class Post:
    rollout_id: str
    url: str
    body: str
    bearer: str | None = None


@dataclass(eq=False)
class Spool:
    root: Path
    _own: Path | None = None
    _lock: FileLock | None = None
    _adopted: list[tuple[Path, FileLock]] = field(default_factory=list)

    def add(self, post: Post) -> Path:
        if self._own is None:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._own = self.root / f"server-{os.getpid()}-{secrets.token_hex(4)}"
            self._own.mkdir(mode=0o700)
            self._lock = _try_lock(self._own)
        digest = hashlib.sha256(f"{post.rollout_id}\0{post.url}\0{post.body}".encode()).hexdigest()[:32]
        path = self._own / f"{digest}.json"
        if not path.exists():
            write_json(path, asdict(post), mode=0o600, durable=True)
        return path

    def refuse(self, path: Path) -> None:
        folder = self.root / REFUSED
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.rename(folder / path.name)

    def adopt(self, max_age_s: float = MAX_AGE_S) -> Iterator[tuple[Path, Post]]:
        """Yield what dead processes left behind, oldest first; their folders stay locked until `close`."""
        paths: list[Path] = []
        for folder in sorted(self.root.glob("server-*")) if self.root.is_dir() else []:
            if folder == self._own or (lock := _try_lock(folder)) is None:
                continue
            self._adopted.append((folder, lock))
            paths.extend(folder.glob("*.json"))
        now = time.time()
        for path in sorted(paths, key=lambda file: file.stat().st_mtime_ns):
            if now - path.stat().st_mtime > max_age_s:
                log.warning("%s is older than %s and is not sent any more", path.name, f"{max_age_s / 3600:g} hours")
                self.refuse(path)
                continue
            try:
                yield path, Post(**json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, TypeError) as exc:
                log.warning("%s is not a spooled result (%s); file kept", path, exc)

    def close(self) -> None:
        for folder, lock in self._adopted:
            _release(folder, lock)
        self._adopted.clear()
        if self._own is not None and self._lock is not None:
            _release(self._own, self._lock)
        self._own = self._lock = None


def _try_lock(folder: Path) -> FileLock | None:
    lock = FileLock(folder / "lock")
    return lock if lock.take() else None


def _release(folder: Path, lock: FileLock) -> None:
    if not any(folder.glob("*.json")):
        for file in folder.iterdir():
            file.unlink(missing_ok=True)
        folder.rmdir()
    lock.release()


@dataclass(frozen=True)
class DeliveryPolicy:
    quick_tries: int = 5  # Tries with a short delay; then the post is spooled and tried on slowly
    base_delay_s: float = 0.5
    max_delay_s: float = 8.0
    slow_delay_s: float = 30.0
    reply_timeout_s: float = 30.0
    slowest_bytes_s: int = 256 * 1024
    """Bytes per second: a large result is given the time that it takes at this rate, too."""
    parallel: int = 128
    max_age_s: float = MAX_AGE_S  # A result that nobody has taken by then is set aside


Listener = Callable[[bytes | None], None]
"""Called with the body of the answer to a post, or with None once that will take long or never comes."""


class Refused(Exception): ...


class ResultDelivery:
    """Deliver posts in the background. `start` sends again what earlier processes left, `close` spools the rest."""

    def __init__(self, *, spool: Spool | None = None, policy: DeliveryPolicy | None = None) -> None:
        self.policy = policy or DeliveryPolicy()
        self.delivered = 0
        self.refused = 0
        self._spool = spool
        self._pool = HttpPool()
        self._queues: dict[str, tuple[deque[Post], asyncio.Task[None]]] = {}
        self._files: dict[Post, Path] = {}
        self._listeners: dict[Post, Listener] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slow_tasks: set[asyncio.Task[None]] = set()
        self._parallel = asyncio.Semaphore(self.policy.parallel)

    @property
    def waiting(self) -> int:
        return len(self._queues)

    def has(self, rollout_id: str) -> bool:
        return rollout_id in self._queues

    def start(self) -> None:
        if self._spool is None:
            return
        for path, post in self._spool.adopt(self.policy.max_age_s):
            log.info("delivering the spooled result of rollout %s, left by an earlier process", post.rollout_id)
            self._files[post] = path
            self._slow_tasks.add(self._enqueue(post))

    def send(self, post: Post, listener: Listener | None = None) -> None:
        if listener is not None:
            self._listeners[post] = listener
        self._enqueue(post)

    def _enqueue(self, post: Post) -> asyncio.Task[None]:
        if post.rollout_id in self._queues:
            queue, task = self._queues[post.rollout_id]
            queue.append(post)
            return task
        queue = deque([post])
        task = asyncio.get_running_loop().create_task(self._work_off(post.rollout_id, queue))
        self._queues[post.rollout_id] = (queue, task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._slow_tasks.discard)
        return task

    async def close(self, timeout: float) -> None:
        quick_tasks = self._tasks - self._slow_tasks
        if quick_tasks:
            await asyncio.wait(quick_tasks, timeout=timeout)
        await end_tasks(*self._tasks)
        undelivered = [post for queue, _ in self._queues.values() for post in queue]
        for post in undelivered:
            self._spool_post(post)
            self._notify(post, None)
        if self._spool is not None:
            if undelivered:
                log.warning(
                    "%d undelivered results are spooled in %s; they are sent again at the next start",
                    len(undelivered),
                    self._spool.root,
                )
            self._spool.close()
        elif undelivered:
            log.error("%d undelivered results are lost: there is no spool folder", len(undelivered))
        await self._pool.close()

    async def _work_off(self, rollout_id: str, queue: deque[Post]) -> None:
        while queue:
            post = queue[0]
            try:
                await self._deliver(post)
                self.delivered += 1
                if (path := self._files.pop(post, None)) is not None:
                    path.unlink(missing_ok=True)
            except Refused as exc:
                log.error("the result of rollout %s is set aside: %s", rollout_id, exc)
                self._set_aside(post)
            except Exception as exc:  # noqa: BLE001 - one post is a border: a bad key or URL must not lose the others
                log.error("the result of rollout %s cannot be sent: %s: %s", rollout_id, type(exc).__name__, exc)
                self._set_aside(post)
            queue.popleft()
        self._queues.pop(rollout_id, None)

    async def _deliver(self, post: Post) -> None:
        tries, until = 0, self._created_at(post) + self.policy.max_age_s
        while True:
            tries += 1
            try:
                retry_after_s, reason = await self._try_once(post)
                if retry_after_s is None:
                    return
            except (asyncio.TimeoutError, OSError) as exc:
                retry_after_s, reason = 0.0, f"{type(exc).__name__}: {exc}"
            delay = self._delay(tries, retry_after_s)
            if time.time() + delay > until:
                age = f"{self.policy.max_age_s / 3600:g} hours"
                raise Refused(f"nobody took it within {age}, the last answer was {reason}")
            if tries == self.policy.quick_tries:
                self._slow_down(post, tries, reason)
            await asyncio.sleep(delay)

    def _slow_down(self, post: Post, tries: int, reason: str) -> None:
        for waiting in self._queues[post.rollout_id][0]:
            self._notify(waiting, None)
        log.warning(
            "rollout %s: result not delivered after %d attempts (%s); it is spooled", post.rollout_id, tries, reason
        )
        self._spool_post(post)
        if (task := asyncio.current_task()) is not None:
            self._slow_tasks.add(task)

    def _created_at(self, post: Post) -> float:
        path = self._files.get(post)
        try:
            return path.stat().st_mtime if path else time.time()
        except OSError:
            return time.time()

    async def _try_once(self, post: Post) -> tuple[float | None, str]:
        async with self._parallel:
            status, body, retry_after = await self.exchange(post)
        if 200 <= status < 300:
            self._notify(post, body)
            return None, ""
        if status in (408, 425, 429) or status >= 500:
            return parse_retry_after(retry_after) or 0.0, f"HTTP {status}"
        raise Refused(f"rejected: HTTP {status} {body[:300].decode(errors='replace')}".strip())

    async def exchange(self, post: Post) -> tuple[int, bytes, str | None]:
        parts = urlsplit(post.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused(f"{post.url} is not a URL")
        headers = {"Content-Type": "application/json", "Idempotency-Key": quote(post.rollout_id, safe=_PLAIN)}
        if post.bearer:
            headers["Authorization"] = f"Bearer {post.bearer}"
        body = post.body.encode()
        timeout_s = self.policy.reply_timeout_s + len(body) / self.policy.slowest_bytes_s
        endpoint = HttpEndpoint(post.url, headers, timeout_s=timeout_s, use_proxies=False, pool=self._pool)
        reply = await endpoint.post(body)
        return reply.status, reply.body, reply.headers.get("retry-after")

    def _delay(self, tries: int, retry_after_s: float) -> float:
        policy = self.policy
        if tries >= policy.quick_tries:
            delay = backoff_delay(1, base_s=policy.slow_delay_s, max_s=policy.slow_delay_s)
        else:
            delay = backoff_delay(tries, base_s=policy.base_delay_s, max_s=policy.max_delay_s)
        return max(min(retry_after_s, 120.0), delay)

    def _spool_post(self, post: Post) -> None:
        if self._spool is None or post in self._files:
            return
        try:
            self._files[post] = self._spool.add(post)
        except OSError as exc:
            log.error("cannot spool the result of rollout %s: %s", post.rollout_id, exc)

    def _notify(self, post: Post, answer: bytes | None) -> None:
        listener = self._listeners.pop(post, None) if answer is not None else self._listeners.get(post)
        if listener is not None:
            listener(answer)

    def _set_aside(self, post: Post) -> None:
        self.refused += 1
        self._notify(post, None)
        self._listeners.pop(post, None)
        self._spool_post(post)
        if self._spool is not None and (path := self._files.pop(post, None)) is not None:
            self._spool.refuse(path)
