"""A worker of `local.workers`: `python -m osmosis.local.worker_process`, with frames on stdin and stdout."""

import asyncio
import functools
import gc
import math
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from osmosis.base.processes import die_with_parent
from osmosis.base.redact import Redactor
from osmosis.datasets.scan import DatasetFacts
from osmosis.engine.evaluate import Attempts
from osmosis.engine.load_agent import close_scorers
from osmosis.engine.provenance import news, watch
from osmosis.engine.resume import ResumePlan
from osmosis.engine.rollout_model import writable
from osmosis.engine.task import Task
from osmosis.engine.watchdog import Watchdog
from osmosis.errors import OsmosisError
from osmosis.local import workers
from osmosis.local.prepare import load_scorers_of
from osmosis.local.prepared_run import PreparedRun, load_source
from osmosis.local.run_options import RunOptions, key_for
from osmosis.records.run.plan import EvalPlan, Timeouts
from osmosis.records.run.rows import Row
from osmosis.sdk.agent_loop import trace_folder
from osmosis.sdk.user_code import LAST_GRACE_S, run_main, stop_tasks

SEND_LIMIT = 1 << 20


class _Port:
    def __init__(self, out: asyncio.StreamWriter) -> None:
        self._out = out
        self.limits = Timeouts()

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self._out.write(workers.frame(kind, payload))

    async def drain(self) -> None:
        await self._out.drain()

    def say(self, text: str) -> None:
        self.send(workers.SAY, text.encode("utf-8", "replace"))

    def beat(self, active: Iterable[Task]) -> None:
        now, score_s, agent_s = time.monotonic(), self.limits.score_s or math.inf, self.limits.agent_s or math.inf
        limits = ((task.ends_at, score_s if task.stage == "score" else agent_s) for task in active)
        left = [limit_s if ends_at is None else ends_at - now for ends_at, limit_s in limits]
        self.send(workers.BEAT, repr(max(left)).encode() if left else b"")

    def answered(self, seconds: float) -> None:
        self.send(workers.ANSWERED, repr(seconds).encode())

    def rate_limited(self, seconds: float) -> None:
        self.send(workers.LIMITED, repr(seconds).encode())


def main() -> None:
    die_with_parent()
    tasks_fd, answers = os.dup(0), os.dup(1)
    # The run decides when to stop; Ctrl-C in a terminal reaches every process of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout = sys.stderr
    asyncio.run(run_main(_serve(tasks_fd, answers)))
    sys.stderr.flush()
    os._exit(0)  # threads that score functions left running hold nobody up


async def _serve(tasks_fd: int, answers: int) -> None:
    loop = asyncio.get_running_loop()
    stream = asyncio.StreamReader(limit=SEND_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(tasks_fd, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(answers, "wb", 0))
    port = _Port(asyncio.StreamWriter(transport, protocol, None, loop))
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        _, payload = await workers.read_frame(stream)
        plan, options, traces = pickle.loads(payload)
        trace_folder.set(traces)
        try:
            prepared = _prepare(plan, options)
        except OsmosisError as error:
            port.send(workers.REFUSED, error.message.encode("utf-8", "replace"))
            await port.drain()
            return
        await _work(prepared, stream, port)


def _prepare(plan: EvalPlan, options: RunOptions) -> PreparedRun:
    watch(options.base_dir)
    source = load_source(plan, options)
    scorers = load_scorers_of(plan, options)
    key = key_for(plan.model, options.environ, options.api_key)
    return PreparedRun(plan, options, source, scorers, DatasetFacts(), {}, ResumePlan(), None, Redactor(), None, key)


async def _work(prepared: PreparedRun, stream: asyncio.StreamReader, port: _Port) -> None:
    model = prepared.open_model(port if prepared.plan.adaptive else None)
    running: dict[str, asyncio.Task[None]] = {}
    try:
        async with prepared.open_agent(model) as agent:
            attempts = Attempts(prepared.plan, agent, model, prepared.scorers, say=port.say)
            active = attempts.active
            port.limits = prepared.plan.timeouts
            watchdog = Watchdog(active, port.say, loop_use=attempts.loop_use, on_beat=lambda: port.beat(active))
            watching = asyncio.create_task(watchdog.watch())
            gc.freeze()
            port.send(workers.READY)
            try:
                await _take_tasks(stream, port, attempts, running)
            finally:
                attempts.cutting = True
                await stop_tasks([*running.values(), watching], LAST_GRACE_S / 2)
                await port.drain()
    finally:
        await model.close()
        await close_scorers(prepared.scorers)


async def _take_tasks(
    stream: asyncio.StreamReader, port: _Port, attempts: Attempts, running: dict[str, asyncio.Task[None]]
) -> None:
    async def run(task: Task) -> None:
        line, _ = writable(await attempts.run(task))
        opened = news()
        if opened:
            port.send(workers.FILES, pickle.dumps(opened))
        port.send(workers.DONE, line)
        await port.drain()

    while True:
        kind, payload = await workers.read_frame(stream)
        if kind == workers.END:
            return
        if kind == workers.CANCEL:
            if (cancelled := running.get(payload.decode())) is not None:
                cancelled.cancel()
            continue
        index, data, line, content_hash, key, attempt, rollout_id, step = pickle.loads(payload)
        row = Row(index=index, data=data, line=line, content_hash=content_hash, key=key)
        task = Task(row, attempt, rollout_id, step, on_enter=lambda: port.beat(attempts.active))
        work = asyncio.create_task(run(task))
        running[rollout_id] = work
        work.add_done_callback(functools.partial(_over, running, rollout_id))


def _over(running: dict[str, asyncio.Task[None]], name: str, work: asyncio.Task[None]) -> None:
    running.pop(name, None)
    if not work.cancelled() and work.exception() is not None:
        os._exit(1)  # it cannot be reported: nobody may wait for it


if __name__ == "__main__":
    main()
