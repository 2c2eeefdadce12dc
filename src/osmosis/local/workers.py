import asyncio
import math
import os
import pickle
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from osmosis.engine.agent import Agent
from osmosis.engine.evaluate import failed_rollout
from osmosis.engine.limits import Limiter
from osmosis.engine.provenance import learn
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.errors import OsmosisError, UsageError
from osmosis.local.run_options import RunOptions, Watcher
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout
from osmosis.sdk.agent_loop import trace_folder

END_S = 2.0
BLOCKED_GRACE_S = 5.0
"""Seconds after which a worker whose code blocks past its time limits, also when it is interrupted, is killed."""
RESTARTS = 5
MOST = 256

# The messages between a run and its worker processes: a kind of one byte, a length, a payload.
_HEAD = struct.Struct(">cI")

ORDER = b"Q"  # To the worker, first: pickled plan, options and folder for traces
TASK = b"T"  # A pickled `(index, data, line, content_hash, key, attempt, rollout_id, step)`
CANCEL = b"C"
END = b"X"
READY = b"U"
REFUSED = b"E"
DONE = b"D"
SAY = b"S"
ANSWERED = b"L"
LIMITED = b"R"
FILES = b"O"
BEAT = b"B"  # The loop goes round; seconds until all that runs now has to have ended, by its time limits, or nothing


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


async def read_frame(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind, length = _HEAD.unpack(await stream.readexactly(_HEAD.size))
    return kind, await stream.readexactly(length)


def worker_count(text: str) -> int:
    if text.strip().lower() == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        count = int(text)
    except ValueError:
        raise UsageError(f"--workers must be a number or auto, got {text!r}") from None
    if not 1 <= count <= MOST:
        raise UsageError(f"--workers must be between 1 and {MOST}, got {count}")
    return count


def check_workers(plan: EvalPlan, options: RunOptions) -> None:
    objects = list(options.objects(plan))
    if options.grader is not None and not isinstance(options.grader, str):
        objects.append(options.grader.__qualname__)
    if options.workers > 1 and objects:
        message = f"workers load agents and score functions by name, and {objects[0]} has none that can be imported"
        raise UsageError(message, hint="put it into a module and name it as module:attribute, or leave out workers")


@asynccontextmanager
async def in_workers(plan: EvalPlan, options: RunOptions, *, limiter: Limiter | None = None) -> AsyncIterator[Agent]:
    crew = _Crew(plan, options, limiter)
    try:
        await asyncio.gather(*(crew.start() for _ in range(options.workers)))
        yield crew
    finally:
        await crew.end()


class _Worker:
    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.waiting: dict[str, tuple[Task, asyncio.Future[Rollout]]] = {}
        self.reader: asyncio.Task[None] | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_blocked = False
        self.timer: asyncio.TimerHandle | None = None

    def kill(self) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()

    def expect_beat(self, left_s: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None
        if left_s != math.inf:
            self.timer = asyncio.get_running_loop().call_later(max(0.0, left_s) + BLOCKED_GRACE_S, self._kill_blocked)

    def _kill_blocked(self) -> None:
        self.is_blocked = True
        self.kill()

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(frame(kind, payload))


class _Crew:
    def __init__(self, plan: EvalPlan, options: RunOptions, limiter: Limiter | None) -> None:
        # The worker process watches nothing and asks nobody.
        self._order = plan, replace(options, confirm=None, watcher=Watcher())
        self._say = options.watcher.stage
        self._limiter = limiter
        self._workers: list[_Worker] = []
        self._started = 0
        self._restarts = RESTARTS
        self._replacing: set[asyncio.Task[None]] = set()
        self._ending = False
        self._alone = asyncio.Lock()
        limits = plan.timeouts
        self._limit_s = (limits.agent_s or math.inf) + (limits.score_s or math.inf)

    async def start(self) -> None:
        self._workers.append(await self._start())

    async def _start(self) -> _Worker:
        self._started += 1
        command, pipe = (sys.executable, "-m", "osmosis.local.worker_process"), asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        worker = _Worker(self._started, process)
        worker.send(ORDER, pickle.dumps((*self._order, trace_folder.get())))
        worker.reader = asyncio.create_task(self._read(worker))
        try:
            await worker.ready
        except BaseException:
            worker.kill()
            raise
        return worker

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        model.deadline.stop()  # the worker keeps the limits
        if not self._workers and self._replacing:
            await asyncio.wait(self._replacing)
        if not self._workers:
            return _lost(task, "no worker process is left", blocked=False)
        try:
            return await self._run_on(min(self._workers, key=lambda other: len(other.waiting)), task)
        except _WorkerLost as lost:
            if lost.was_alone:
                return _lost(task, str(lost), blocked=lost.blocked)
        # It may be innocent: whoever ends its worker again, alone, was it.
        async with self._alone:
            worker = await self._start()
            try:
                return await self._run_on(worker, task)
            except _WorkerLost as lost:
                return _lost(task, str(lost), blocked=lost.blocked)
            finally:
                worker.send(END)
                await self._close(worker)

    async def _run_on(self, worker: _Worker, task: Task) -> Rollout:
        task.enter(f"worker {worker.number}")
        row = task.row
        done: asyncio.Future[Rollout] = asyncio.get_running_loop().create_future()
        worker.waiting[task.rollout_id] = (task, done)
        order = row.index, row.data, row.line, row.content_hash, row.key, task.attempt, task.rollout_id, task.step
        worker.send(TASK, pickle.dumps(order))
        if worker.timer is None:
            worker.expect_beat(self._limit_s)
        try:
            return await done
        except asyncio.CancelledError:
            if worker.waiting.pop(task.rollout_id, None) is not None:
                worker.send(CANCEL, task.rollout_id.encode())
            raise

    async def end(self) -> None:
        self._ending = True
        for work in self._replacing:
            work.cancel()
        for worker in self._workers:
            worker.send(END)
        await asyncio.gather(*map(self._close, self._workers))

    async def _close(self, worker: _Worker) -> None:
        if worker.reader is not None:
            await asyncio.wait([worker.reader], timeout=END_S)
        worker.kill()
        await worker.process.wait()

    async def _read(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self._take(worker, *await read_frame(worker.process.stdout))
        worker.expect_beat(math.inf)
        code = await worker.process.wait()
        if not worker.ready.done():
            message = f"a worker process ended while it started ({_describe_exit(code)})"
            worker.ready.set_exception(OsmosisError(message))
        if not self._ending:
            self._remove_worker(worker, code)

    def _take(self, worker: _Worker, kind: bytes, payload: bytes) -> None:
        if kind == DONE:
            rollout = Rollout.model_validate_json(payload)
            _, done = worker.waiting.pop(rollout.rollout_id, (None, None))
            if done is not None and not done.done():
                done.set_result(rollout)
        elif kind == READY:
            worker.ready.set_result(None)
        elif kind == REFUSED:
            worker.ready.set_exception(OsmosisError(f"a worker process cannot start: {payload.decode()}"))
        elif kind == SAY:
            self._say(f"worker {worker.number}: {payload.decode()}")
        elif kind == BEAT:
            if payload or not worker.waiting:  # else what was sent has not begun
                worker.expect_beat(float(payload) if payload else math.inf)
        elif kind == FILES:
            learn(pickle.loads(payload))
        elif self._limiter is not None:
            (self._limiter.answered if kind == ANSWERED else self._limiter.rate_limited)(float(payload))

    def _remove_worker(self, worker: _Worker, code: int) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            if self._restarts > 0:
                self._restarts -= 1
                replacing = asyncio.create_task(self._replace())
                self._replacing.add(replacing)
                replacing.add_done_callback(self._replacing.discard)
        act = "blocked past its time limits and was killed" if worker.is_blocked else f"ended ({_describe_exit(code)})"
        reason = f"worker process {worker.number} {act}"
        for _, done in worker.waiting.values():
            if not done.done():
                done.set_exception(_WorkerLost(reason, was_alone=len(worker.waiting) == 1, blocked=worker.is_blocked))
        worker.waiting.clear()

    async def _replace(self) -> None:
        try:
            await self.start()
        except OsmosisError as error:
            self._say(f"a worker that ended could not be replaced: {error.message}")


class _WorkerLost(Exception):
    def __init__(self, reason: str, *, was_alone: bool, blocked: bool) -> None:
        super().__init__(reason)
        self.was_alone = was_alone
        self.blocked = blocked


def _lost(task: Task, reason: str, *, blocked: bool) -> Rollout:
    phase, category = (Phase.AGENT, Category.TIMEOUT) if blocked else (Phase.SETUP, Category.SERVER_DIED)
    fix = "look for native code that crashes or takes all memory, then resume with --retry-failed server_died"
    if blocked:
        fix = "await what takes long, or hand it to asyncio.to_thread"
    message = f"{reason} with this rollout in flight"
    return failed_rollout(task, Failure(phase=phase, category=category, message=message, fix=fix))


def _describe_exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
