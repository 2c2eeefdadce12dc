"""Parse foreign bytes in a sandboxed process: a reader of ours, JSON in and out (`base.processes.reader_main`)."""

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from osmosis.base.processes import REFUSED
from osmosis.errors import PlatformError, TooLarge, from_wire
from osmosis.records.sandbox import EndedBy, LimitedResult
from osmosis.sandbox import Limits, Policy, probe, run

AT_ONCE = ((30.0, 4), (90.0, 3), (float("inf"), 2))
MEMORY_MB = 1024
OUTPUT_BYTES = 64 * 1024 * 1024

_slots = [(most, threading.BoundedSemaphore(count)) for most, count in AT_ONCE]
_PYTHON = tuple(
    {Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parent.parent}
    | {Path(__file__).resolve().parents[2]}
)


class Unreadable(TooLarge):
    http_status = 400


def read_with(
    words: Sequence[str],
    request: Mapping[str, object],
    *,
    what: str,
    files: Sequence[Path] = (),
    write: Sequence[Path] = (),
    seconds: float,
    memory_mb: int = MEMORY_MB,
    address_space_mb: int | None = None,
) -> object:
    """Return the answer of `python -I <words>`; raise the reader's error, or `Unreadable` if a limit ended it."""
    limits = Limits(
        memory_mb=memory_mb,
        address_space_mb=address_space_mb or memory_mb * 4,
        cpu_s=int(seconds) + 1,
        wall_s=seconds * 2,
        processes=64,
        open_files=256,
        output_bytes=OUTPUT_BYTES,
    )
    environ = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "2"}
    read = (*_PYTHON, *files)
    policy = Policy(level=probe().level, limits=limits, read=read, write=tuple(write), environ=environ)
    with next(slots for most, slots in _slots if seconds <= most):
        done = run([sys.executable, "-I", *words], policy, input=json.dumps(request).encode())
    if done.ok or done.code == REFUSED:
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            raise PlatformError(f"{what} could not be read: its reader said nothing") from None
        if done.ok:
            return answer
        body = answer if isinstance(answer, dict) else {}
        raise from_wire(int(body.pop("status", 400)), body)
    raise Unreadable(f"{what} cannot be read: {_explain_failure(done, limits)}", hint="make it smaller or simpler")


def _explain_failure(done: LimitedResult, limits: Limits) -> str:
    if done.ended is EndedBy.TIME or done.code in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
        return f"it takes more than {limits.cpu_s} s"
    if done.ended is EndedBy.OUTPUT:
        return "it holds more than can be shown"
    if done.ended is EndedBy.MEMORY or b"MemoryError" in done.stderr or done.code in (-signal.SIGKILL, 137):
        return f"it takes more than {limits.memory_mb} MB of memory"
    words = done.stderr.decode(errors="replace").strip().splitlines()
    return words[-1][:300] if words else f"its reader ended with code {done.code}"
