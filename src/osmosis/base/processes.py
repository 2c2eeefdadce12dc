from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis.base.jsonable import JsonObject
from osmosis.errors import OsmosisError

if TYPE_CHECKING:
    import asyncio


PR_SET_DUMPABLE = 4
PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def signals_handled(handler: Callable[[int, Any], object], *numbers: int) -> Iterator[None]:
    """Handle these signals inside the block; outside the main thread, whoever runs that handles them."""
    before = {}
    for number in numbers:
        with contextlib.suppress(ValueError):  # not the main thread
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def start_token(pid: int) -> str | None:
    """Return text that changes when the id is reused; None for no process, or a zombie."""
    if sys.platform == "linux":
        # Linux counts from the start of the machine; psutil would add when that was by today's clock, which may be set
        # meanwhile: a token is compared days later, by another process.
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        state, ticks = stat[0], int(stat[19])  # fields 3 and 22 of proc(5)
        return None if state in b"ZXx" else f"{ticks / os.sysconf('SC_CLK_TCK'):.2f}"
    import psutil  # a compiled library, which most commands never need

    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        return f"{process.create_time():.2f}"
    except psutil.Error:
        return None


def is_same(pid: int, token: str | None) -> bool:
    return token is not None and start_token(pid) == token


def protect_memory() -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with_parent() -> None:
    """End this process when the one that started it is gone, whatever its code is doing then."""
    parent = os.getppid()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()  # elsewhere than on Linux, and if it went before


def find_processes(word: str) -> list[tuple[int, list[str]]]:
    import psutil

    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            arguments = process.cmdline()
            if word in arguments:
                processes.append((process.pid, arguments))
    return processes


def is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_group(group: int) -> None:
    signal_group(group, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                each.kill()


_LINE_TOO_LONG = "(a line that is too long was left out)"


async def iterate_lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield lines of output, without those beyond the stream's limit: redaction would miss a secret at the cut."""
    cut = False
    while True:
        try:
            line = await stream.readline()
        except ValueError as error:  # what is buffered of it is dropped, with its end if that was there
            cut = "is found" not in str(error)
            if not cut:
                yield _LINE_TOO_LONG
            continue
        if cut:
            cut = False
            yield _LINE_TOO_LONG
            continue
        if not line:
            return
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def limit_files(pid: int, most: int) -> None:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (most, most))


REFUSED = 3  # Exit code of a reader that wrote an error instead of its result


def reader_main(read: Callable[[JsonObject], object]) -> int:
    """Run `read`, which parses untrusted bytes, on the JSON of stdin; write its result and return the exit code."""
    request = json.load(sys.stdin)
    try:
        answer, code = read(request), 0
    except OsmosisError as error:
        answer, code = {**error.to_wire(), "status": error.http_status}, REFUSED
    except RecursionError:
        answer, code = {"message": "it is nested too deeply to be read", "status": 400}, REFUSED
    json.dump(answer, sys.stdout)
    sys.stdout.flush()
    return code


STOPS = (signal.SIGTERM, signal.SIGINT)


def on_stop(action: Callable[[], object], *, signals: tuple[signal.Signals, ...] = STOPS) -> None:
    """Call `action` in a thread at these signals: a handler that sets an event could wait forever for its lock."""
    received: queue.SimpleQueue[int] = queue.SimpleQueue()  # its `put` may interrupt another one, and takes no lock

    def tell() -> None:
        while True:
            received.get()
            action()

    threading.Thread(target=tell, name="stop-signals", daemon=True).start()
    for number in signals:
        signal.signal(number, lambda number, _: received.put(number))


AGAIN_S = 30.0


async def wait_for_first(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    import asyncio  # half of what importing this file costs a short command

    await asyncio.wait(set(futures), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


async def end_tasks(*tasks: asyncio.Future[Any], again_s: float = AGAIN_S) -> None:
    import asyncio  # the same

    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=again_s)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen: nobody else asks
