"""A worker of `local.workers`: `python -m osmosis.local.worker_process`, told what to do on stdin, answering on stdout.

Loads the agent and the score functions by their names, runs and scores what it is given, and ends when nobody listens
any more. Writes no journal and decides nothing about the run. What user code prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import pickle
import signal
import sys
from contextlib import suppress

from osmosis.base.redact import Redactor
from osmosis.datasets.scan import DatasetFacts
from osmosis.engine.agent_files import news, watch
from osmosis.engine.attempt import Attempts
from osmosis.engine.resume import ResumePlan
from osmosis.engine.scoring import close_scorers
from osmosis.engine.task import Task
from osmosis.engine.watchdog import Watchdog
from osmosis.engine.writable import writable
from osmosis.errors import OsmosisError
from osmosis.records.dataset import Row
from osmosis.sdk.agent_loop import trace_folder
from osmosis.sdk.calls import LAST_GRACE_S, alone, end_all

from . import frames
from .prepare import load_scorers_of
from .prepared import Prepared
from .request import Request, key_for
from .rollout_source import load_source

SEND_LIMIT = 1 << 20


class _Port:
    """The way back; also the `Signals` of this process's model."""

    def __init__(self, out: asyncio.StreamWriter) -> None:
        self._out = out

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self._out.write(frames.frame(kind, payload))

    async def drain(self) -> None:
        await self._out.drain()

    def say(self, text: str) -> None:
        self.send(frames.SAY, text.encode("utf-8", "replace"))

    def answered(self, seconds: float) -> None:
        self.send(frames.ANSWERED, repr(seconds).encode())

    def rate_limited(self, seconds: float) -> None:
        self.send(frames.LIMITED, repr(seconds).encode())


def main() -> None:
    serve(os.dup(0), os.dup(1))


def serve(told: int, answers: int) -> None:
    """Works for whoever writes to `told` until that is closed; does not return."""
    # The run decides when to stop; Ctrl-C in a terminal reaches every process of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout = sys.stderr
    asyncio.run(alone(_serve(told, answers)))
    sys.stderr.flush()
    os._exit(0)  # threads that score functions left running hold nobody up


async def _serve(told: int, answers: int) -> None:
    loop = asyncio.get_running_loop()
    stream = asyncio.StreamReader(limit=SEND_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(told, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(answers, "wb", 0))
    port = _Port(asyncio.StreamWriter(transport, protocol, None, loop))
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        _, payload = await frames.read_frame(stream)
        request, traces = pickle.loads(payload)
        trace_folder.set(traces)
        try:
            prepared = _prepare(request)
        except OsmosisError as error:
            port.send(frames.REFUSED, error.message.encode("utf-8", "replace"))
            await port.drain()
            return
        await _work(prepared, stream, port)


def _prepare(request: Request) -> Prepared:
    """What is needed to run and score; the dataset, the journal and the questions are the run's."""
    watch(request.base_dir)
    source = load_source(request)
    scorers = load_scorers_of(request)
    key = key_for(request.plan.model, request.environ, request.api_key)
    return Prepared(
        request, request.plan, source, scorers, DatasetFacts(), {}, ResumePlan(), None, Redactor(), None, key
    )


async def _work(prepared: Prepared, stream: asyncio.StreamReader, port: _Port) -> None:
    signals = port if prepared.plan.adaptive else None
    model = prepared.open_model(signals)
    running: dict[str, asyncio.Task[None]] = {}
    try:
        async with prepared.rollouts(model) as rollout_fn:
            attempts = Attempts(rollout_fn, prepared.scorers, sandbox=prepared.plan.sandbox, say=port.say)
            watchdog = Watchdog(attempts.active, port.say, loop_use=attempts.loop_use)
            watching = asyncio.create_task(watchdog.watch())
            gc.freeze()
            port.send(frames.READY)
            try:
                await _take_tasks(stream, port, attempts, running)
            finally:
                attempts.cutting = True
                await end_all([*running.values(), watching], LAST_GRACE_S / 2)
                await port.drain()
    finally:
        await model.close()
        await close_scorers(prepared.scorers)


async def _take_tasks(
    stream: asyncio.StreamReader, port: _Port, attempts: Attempts, running: dict[str, asyncio.Task[None]]
) -> None:
    async def one(task: Task) -> None:
        line, _ = writable(await attempts.one(task))
        opened = news()
        if opened:
            port.send(frames.FILES, pickle.dumps(opened))
        port.send(frames.DONE, line)
        await port.drain()

    while True:
        kind, payload = await frames.read_frame(stream)
        if kind == frames.END:
            return
        if kind == frames.CANCEL:
            if (gone := running.get(payload.decode())) is not None:
                gone.cancel()
            continue
        index, data, line, content_hash, key, attempt, rollout_id, step = pickle.loads(payload)
        row = Row(index=index, data=data, line=line, content_hash=content_hash, key=key)
        work = asyncio.create_task(one(Task(row, attempt, rollout_id, step)))
        running[rollout_id] = work
        work.add_done_callback(functools.partial(_over, running, rollout_id))


def _over(running: dict[str, asyncio.Task[None]], name: str, _: asyncio.Task[None]) -> None:
    running.pop(name, None)


if __name__ == "__main__":
    main()
