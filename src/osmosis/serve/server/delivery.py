"""Delivers results to the trainer that asked for them: 2xx is success, 429, 408 and 5xx are tried again with jitter
and `Retry-After`, other answers are final. What cannot be delivered is kept, tried on slowly, written to the spool
and sent again at the next start. Posts of one rollout keep their order; a repeated post is byte for byte the same.

A spool belongs to one server: an agent, and the folder it is started in. Each process owns one folder of it under a
file lock; at the next start of that server the folders of dead processes are taken over. Tries end when a result is a
day old. A spooled result holds the bearer of its callback: folders are 0700 and files 0600.
"""

from __future__ import annotations

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
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from osmosis.base.backoff import backoff_delay, parse_retry_after
from osmosis.base.files import write_json
from osmosis.base.locks import FileLock
from osmosis.base.tasks import end
from osmosis.llm.wire import Pool, open_wire

from .queue import LoopPacer

log = logging.getLogger("osmosis.serve")

REFUSED = "refused"
MAX_AGE_S = 24 * 3600.0
"""Older results are set aside: no client waits for them any more."""


def spool_folder(root: Path, agent: str) -> Path:
    """The spool beneath `root` of the server that runs `agent` and is started in the current folder."""
    here = Path.cwd()
    digest = hashlib.sha256(f"{here}\0{agent}".encode()).hexdigest()[:16]
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{here.name}-{agent}").strip("-.")
    return root / f"{words[:80]}-{digest}"


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
        self._lock: FileLock | None = None
        self._adopted: list[tuple[Path, FileLock]] = []

    def add(self, post: Post) -> Path:
        """Writes one post durably and returns its file; the same post is the same file."""
        folder = self._own_folder()
        digest = hashlib.sha256(f"{post.rollout_id}\0{post.url}\0{post.body}".encode()).hexdigest()[:32]
        path = folder / f"{digest}.json"
        if path.exists():
            return path
        write_json(path, asdict(post), mode=0o600, durable=True)
        return path

    def refuse(self, path: Path) -> None:
        """The receiver will never take it: kept aside for a person, not sent again."""
        aside = self.root / REFUSED
        aside.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.rename(aside / path.name)

    def adopt(self, max_age_s: float = MAX_AGE_S) -> Iterator[tuple[Path, Post]]:
        """What dead processes left behind, oldest first; their folders are locked until `close`."""
        found: list[Path] = []
        for folder in sorted(self.root.glob("server-*")) if self.root.is_dir() else []:
            if folder == self._own or (lock := _try_lock(folder)) is None:
                continue
            self._adopted.append((folder, lock))
            found.extend(folder.glob("*.json"))
        now = time.time()
        for path in sorted(found, key=lambda file: file.stat().st_mtime_ns):
            if now - path.stat().st_mtime > max_age_s:
                log.warning("%s is older than %s and is not sent any more", path.name, _hours(max_age_s))
                self.refuse(path)
                continue
            try:
                yield path, Post(**json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, TypeError) as exc:
                log.warning("%s is not a spooled result (%s); file kept", path, exc)

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


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:g} hours"


def _try_lock(folder: Path) -> FileLock | None:
    lock = FileLock(folder / "lock")
    return lock if lock.take() else None


def _leave(folder: Path, lock: FileLock) -> None:
    if not any(folder.glob("*.json")):
        for rest in folder.iterdir():
            rest.unlink(missing_ok=True)
        folder.rmdir()
    lock.release()


@dataclass(frozen=True)
class DeliveryPolicy:
    """How often, how long in between (seconds)."""

    quick_tries: int = 5
    """Tries with a short delay; then the post is spooled and tried on slowly."""
    base_delay_s: float = 0.5
    max_delay_s: float = 8.0
    slow_delay_s: float = 30.0
    reply_timeout_s: float = 30.0
    slowest_bytes_s: int = 256 * 1024
    """A large result is given the time that it takes at this rate, too."""
    parallel: int = 128
    """Posts on the wire at the same time."""
    max_age_s: float = MAX_AGE_S
    """A result that nobody has taken by then is set aside."""


Listener = Callable[[bytes | None], None]
"""Hears how a post was answered: the body of the answer, or None once it will take long or never comes."""


class Refused(Exception):
    """The receiver will never take this, or did not for too long."""


class ResultDelivery:
    """Takes responsibility for posts. `start` redelivers what earlier processes left, `close` spools the rest."""

    def __init__(
        self,
        *,
        spool: Spool | None = None,
        policy: DeliveryPolicy | None = None,
        pacer: LoopPacer | None = None,
    ) -> None:
        self._pool = Pool()
        self._spool = spool
        self.policy = policy or DeliveryPolicy()
        self._pacer = pacer or LoopPacer()
        self._queues: dict[str, tuple[deque[Post], asyncio.Task[None]]] = {}
        self._files: dict[Post, Path] = {}
        self._listeners: dict[Post, Listener] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slow: set[asyncio.Task[None]] = set()
        self._wire = asyncio.Semaphore(self.policy.parallel)
        self.delivered = 0
        self.refused = 0

    @property
    def waiting(self) -> int:
        """Rollouts with a result that is not acknowledged yet."""
        return len(self._queues)

    def has(self, rollout_id: str) -> bool:
        """Whether a result of this rollout is still to be delivered."""
        return rollout_id in self._queues

    def start(self) -> None:
        if self._spool is None:
            return
        for path, post in self._spool.adopt(self.policy.max_age_s):
            log.info("delivering the spooled result of rollout %s, left by an earlier process", post.rollout_id)
            self._files[post] = path
            self._slow.add(self._send(post))

    def send(self, post: Post, listener: Listener | None = None) -> None:
        """Sends in the background, after everything sent before for the same rollout."""
        if listener is not None:
            self._listeners[post] = listener
        self._send(post)

    def _send(self, post: Post) -> asyncio.Task[None]:
        known = self._queues.get(post.rollout_id)
        if known is not None:
            known[0].append(post)
            return known[1]
        queue = deque([post])
        task = asyncio.get_running_loop().create_task(self._work(post.rollout_id, queue))
        self._queues[post.rollout_id] = (queue, task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._slow.discard)
        return task

    async def close(self, timeout: float) -> None:
        """Goes on delivering for `timeout` seconds, then spools what is left; loses nothing while there is a spool."""
        quick = self._tasks - self._slow
        if quick:
            await asyncio.wait(quick, timeout=timeout)
        await end(*self._tasks)
        left = [post for queue, _ in self._queues.values() for post in queue]
        for post in left:
            self._keep(post)
            self._tell(post, None)
        if left and self._spool is None:
            log.error("%d undelivered results are lost: there is no spool folder", len(left))
        elif left:
            log.warning(
                "%d undelivered results are spooled in %s; they are sent again at the next start",
                len(left),
                self._spool_root,
            )
        if self._spool is not None:
            self._spool.close()
        await self._pool.close()

    @property
    def _spool_root(self) -> str:
        return str(self._spool.root) if self._spool else ""

    async def _work(self, rollout_id: str, queue: deque[Post]) -> None:
        while queue:
            post = queue[0]
            try:
                await self._deliver(post)
                self.delivered += 1
                self._forget(post)
            except Refused as exc:
                self.refused += 1
                log.error("the result of rollout %s is set aside: %s", rollout_id, exc)
                self._put_aside(post)
            except Exception as exc:  # noqa: BLE001 - one post is a border: a bad key or URL must not lose the others
                self.refused += 1
                log.error("the result of rollout %s cannot be sent: %s: %s", rollout_id, type(exc).__name__, exc)
                self._put_aside(post)
            queue.popleft()
        self._queues.pop(rollout_id, None)

    async def _deliver(self, post: Post) -> None:
        tries, until = 0, self._made(post) + self.policy.max_age_s
        while True:
            tries += 1
            try:
                asked, why = await self._once(post)
                if asked is None:
                    return
            except (asyncio.TimeoutError, OSError) as exc:
                asked, why = 0.0, f"{type(exc).__name__}: {exc}"
            delay = self._delay(tries, asked)
            if time.time() + delay > until:
                raise Refused(f"nobody took it within {_hours(self.policy.max_age_s)}, the last answer was {why}")
            if tries == self.policy.quick_tries:
                for waiting in self._queues[post.rollout_id][0]:
                    self._tell(waiting, None)
                log.warning(
                    "rollout %s: result not delivered after %d attempts (%s); it is spooled",
                    post.rollout_id,
                    tries,
                    why,
                )
                self._keep(post)
                if (task := asyncio.current_task()) is not None:
                    self._slow.add(task)
            await asyncio.sleep(delay)

    def _made(self, post: Post) -> float:
        """When a result was made, in Unix seconds: what an earlier process left is as old as its file."""
        known = self._files.get(post)
        try:
            return known.stat().st_mtime if known else time.time()
        except OSError:
            return time.time()

    async def _once(self, post: Post) -> tuple[float | None, str]:
        """One try: (None, "") when taken, else the delay the receiver asked for (0 = it said nothing) and why."""
        await self._pacer.pace()
        async with self._wire:
            status, said, asked = await self.exchange(post)
        if 200 <= status < 300:
            self._tell(post, said)
            return None, ""
        if status in (408, 425, 429) or status >= 500:
            return parse_retry_after(asked) or 0.0, f"HTTP {status}"
        raise Refused(f"rejected: HTTP {status} {said[:300].decode(errors='replace')}".strip())

    async def exchange(self, post: Post) -> tuple[int, bytes, str | None]:
        """Sends a post: status, the answer, its `Retry-After` header."""
        parts = urlsplit(post.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused(f"{post.url} is not a URL")
        headers = {"Content-Type": "application/json", "Idempotency-Key": _header(post.rollout_id)}
        if post.bearer:
            headers["Authorization"] = f"Bearer {post.bearer}"
        body = post.body.encode()
        timeout_s = self.policy.reply_timeout_s + len(body) / self.policy.slowest_bytes_s
        reply = await open_wire(post.url, headers, timeout_s=timeout_s, direct=True, pool=self._pool).post(body)
        return reply.status, reply.body, reply.retry_after

    def _delay(self, tries: int, asked: float) -> float:
        policy = self.policy
        if tries >= policy.quick_tries:
            delay = backoff_delay(1, base_s=policy.slow_delay_s, max_s=policy.slow_delay_s)
        else:
            delay = backoff_delay(tries, base_s=policy.base_delay_s, max_s=policy.max_delay_s)
        return max(min(asked, 120.0), delay)

    def _keep(self, post: Post) -> None:
        if self._spool is None or post in self._files:
            return
        try:
            self._files[post] = self._spool.add(post)
        except OSError as exc:
            log.error("cannot spool the result of rollout %s: %s", post.rollout_id, exc)

    def _forget(self, post: Post) -> None:
        if (path := self._files.pop(post, None)) is not None:
            path.unlink(missing_ok=True)

    def _tell(self, post: Post, answer: bytes | None) -> None:
        listener = self._listeners.pop(post, None) if answer is not None else self._listeners.get(post)
        if listener is not None:
            listener(answer)

    def _put_aside(self, post: Post) -> None:
        self._tell(post, None)
        self._listeners.pop(post, None)
        self._keep(post)
        if self._spool is not None and (path := self._files.pop(post, None)) is not None:
            self._spool.refuse(path)


def _header(rollout_id: str) -> str:
    """An id as a header value: generation 0.2 allows any characters in it."""
    return quote(rollout_id, safe=" !#$&'()*+,/:;=?@[]_.-~")
