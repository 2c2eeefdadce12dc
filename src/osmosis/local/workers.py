"""Rows over several processes: a `RolloutFn` that hands each attempt to a worker and gets it back scored.

The run itself (journal, resume, budget, breaker, stop, progress) stays where it is, in one process; a worker runs
agents and score functions, and knows nothing of the others. One that dies costs what it had in flight, and is replaced.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from osmosis.engine.agent_files import learn
from osmosis.engine.attempt import broken
from osmosis.engine.limiter import Limiter
from osmosis.engine.task import RolloutFn, Task
from osmosis.errors import OsmosisError, UsageError
from osmosis.records.rollout import Category, Failure, Phase, Rollout
from osmosis.sdk.agent_loop import trace_folder

from . import frames
from .forked import Forked, ForkedProcess
from .request import Request

END_S = 2.0
"""How long a worker has to end by itself."""
RESTARTS = 5
"""How often a worker that died is replaced in one run."""
MOST = 256


def worker_count(text: str) -> int:
    """From `--workers`: a number, or `auto` for one per core that this process may use."""
    if text.strip().lower() == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        count = int(text)
    except ValueError:
        raise UsageError(f"--workers must be a number or auto, got {text!r}") from None
    if not 1 <= count <= MOST:
        raise UsageError(f"--workers must be between 1 and {MOST}, got {count}")
    return count


def check_workers(request: Request) -> None:
    """Refuses what other processes could not load."""
    objects = [*([request.plan.agent] if request.agent is not None else []), *request.functions]
    if request.grader is not None and not isinstance(request.grader, str):
        objects.append(request.grader.__qualname__)
    if request.workers > 1 and objects:
        raise UsageError(
            f"workers load agents and score functions by name, and {objects[0]} has none that can be imported",
            hint="put it into a module and name it as module:attribute, or leave out workers",
        )


@asynccontextmanager
async def in_workers(
    request: Request,
    count: int,
    *,
    say: Callable[[str], None],
    limiter: Limiter | None = None,
    forked: Sequence[Forked] = (),
) -> AsyncIterator[RolloutFn]:
    """The `RolloutFn` of `count` worker processes; what comes back from it is scored. They end with the block.

    `forked` are used first.
    """
    crew = _Crew(request, say, limiter, forked)
    try:
        await asyncio.gather(*(crew.start() for _ in range(count)))
        yield crew.run
    finally:
        await crew.end()


class _Worker:
    """One process, and what it has in hand."""

    def __init__(self, number: int, process: asyncio.subprocess.Process | ForkedProcess) -> None:
        self.number = number
        self.process = process
        self.waiting: dict[str, tuple[Task, asyncio.Future[Rollout]]] = {}
        self.reader: asyncio.Task[None] | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(frames.frame(kind, payload))


class _Crew:
    def __init__(
        self, request: Request, say: Callable[[str], None], limiter: Limiter | None, forked: Sequence[Forked] = ()
    ) -> None:
        self._request = request
        self._forked = [one for one in forked if one.to >= 0]
        self._say = say
        self._limiter = limiter
        self._workers: list[_Worker] = []
        self._started = 0
        self._restarts = RESTARTS
        self._replacing: set[asyncio.Task[None]] = set()
        self._ending = False

    async def start(self) -> None:
        """One more worker, once it has loaded everything. Raises what it cannot start with."""
        self._started += 1
        worker = _Worker(self._started, await self._process())
        worker.send(frames.REQUEST, pickle.dumps((self._request, trace_folder.get())))
        worker.reader = asyncio.create_task(self._read(worker))
        try:
            await worker.ready
        except BaseException:
            with suppress(ProcessLookupError):
                worker.process.kill()
            raise
        self._workers.append(worker)

    async def _process(self) -> asyncio.subprocess.Process | ForkedProcess:
        if self._forked:
            return await self._forked.pop().opened()
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "osmosis.local.worker_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def run(self, task: Task) -> Rollout:
        """The attempt, done and scored by the worker that has the least to do."""
        if not self._workers and self._replacing:
            await asyncio.wait(self._replacing)
        if not self._workers:
            return _lost(task, "no worker process is left")
        worker = min(self._workers, key=lambda one: len(one.waiting))
        task.enter(f"worker {worker.number}")
        row = task.row
        done: asyncio.Future[Rollout] = asyncio.get_running_loop().create_future()
        worker.waiting[task.rollout_id] = (task, done)
        worker.send(
            frames.TASK,
            pickle.dumps(
                (row.index, row.data, row.line, row.content_hash, row.key, task.attempt, task.rollout_id, task.step)
            ),
        )
        try:
            return await done
        except asyncio.CancelledError:
            if worker.waiting.pop(task.rollout_id, None) is not None:
                worker.send(frames.CANCEL, task.rollout_id.encode())
            raise

    async def end(self) -> None:
        self._ending = True
        for work in self._replacing:
            work.cancel()
        for worker in self._workers:
            worker.send(frames.END)
        readers = [worker.reader for worker in self._workers if worker.reader is not None]
        if readers:
            await asyncio.wait(readers, timeout=END_S)
        for worker in self._workers:
            if worker.process.returncode is None:
                with suppress(ProcessLookupError):
                    worker.process.kill()
            await worker.process.wait()

    async def _read(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self._take(worker, *await frames.read_frame(worker.process.stdout))
        code = await worker.process.wait()
        if not worker.ready.done():
            worker.ready.set_exception(OsmosisError(f"a worker process ended while it started ({_how(code)})"))
        if not self._ending:
            self._gone(worker, code)

    def _take(self, worker: _Worker, kind: bytes, payload: bytes) -> None:
        if kind == frames.DONE:
            rollout = Rollout.model_validate_json(payload)
            _, done = worker.waiting.pop(rollout.rollout_id, (None, None))
            if done is not None and not done.done():
                done.set_result(rollout)
        elif kind == frames.READY:
            worker.ready.set_result(None)
        elif kind == frames.REFUSED:
            worker.ready.set_exception(OsmosisError(f"a worker process cannot start: {payload.decode()}"))
        elif kind == frames.SAY:
            self._say(f"worker {worker.number}: {payload.decode()}")
        elif kind == frames.FILES:
            learn(pickle.loads(payload))
        elif self._limiter is not None:
            tell = self._limiter.answered if kind == frames.ANSWERED else self._limiter.rate_limited
            tell(float(payload))

    def _gone(self, worker: _Worker, code: int) -> None:
        """What it had in flight is lost; another one takes its place."""
        if worker in self._workers:
            self._workers.remove(worker)
            if self._restarts > 0:
                self._restarts -= 1
                replacing = asyncio.create_task(self._replace())
                self._replacing.add(replacing)
                replacing.add_done_callback(self._replacing.discard)
        for task, done in worker.waiting.values():
            if not done.done():
                done.set_result(_lost(task, f"worker process {worker.number} ended ({_how(code)})"))
        worker.waiting.clear()

    async def _replace(self) -> None:
        try:
            await self.start()
        except OsmosisError as error:
            self._say(f"a worker that ended could not be replaced: {error.message}")


def _lost(task: Task, why: str) -> Rollout:
    failure = Failure(
        phase=Phase.SETUP,
        category=Category.SERVER_DIED,
        message=f"{why} with this rollout in flight",
        fix="look for native code that crashes or takes all memory, then resume with --retry-failed server_died",
    )
    return broken(task, failure)


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
