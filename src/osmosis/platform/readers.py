"""Whatever somebody else's bytes are parsed with runs here: a process of its own, with limits, in a sandbox where one
works. Deep, wide or bombed, they cost a refusal and never the platform's memory or time.

A reader is a module or a script of ours that reads JSON on stdin and writes JSON to stdout, or an error as
`reader_main` of `osmosis.base.reader` does. It reaches no network, reads the files it is given and writes nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from osmosis.base.reader import REFUSED
from osmosis.errors import OsmosisError, PlatformError, TooLarge, from_wire
from osmosis.records.sandbox_command import EndedBy, LimitedResult
from osmosis.sandbox import Limits, Policy, probe, run

AT_ONCE = ((30.0, 4), (90.0, 3), (float("inf"), 2))
"""How many readers may work at the same time, of those that may take so many seconds; others wait. Each row has slots
of its own: large files hold up neither small ones nor a sync."""
MEMORY_MB = 1024
OUTPUT_BYTES = 64 * 1024 * 1024

_slots = [(most, threading.BoundedSemaphore(count)) for most, count in AT_ONCE]
_PYTHON = tuple(
    {Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parent.parent}
    | {Path(__file__).resolve().parents[2]}
)


class Unreadable(TooLarge):
    """Reading it went beyond a limit, or ended the reader."""

    http_status = 400


def read_with(
    words: Sequence[str],
    given: Mapping[str, object],
    *,
    what: str,
    files: Sequence[Path] = (),
    write: Sequence[Path] = (),
    seconds: float,
    memory_mb: int = MEMORY_MB,
    address_space_mb: int | None = None,
) -> object:
    """What the reader `python -I <words>` says about `given`. `what` begins the message of an error.

    With `address_space_mb` its allocations fail before its memory is used up, which it can tell from a bad file.

    Raises the reader's own error as it left it, `Unreadable` when a limit ended it.
    """
    limits = Limits(
        memory_mb=memory_mb,
        address_space_mb=address_space_mb or memory_mb * 4,
        cpu_s=int(seconds) + 1,
        wall_s=seconds * 2,
        processes=64,
        open_files=256,
        output_bytes=OUTPUT_BYTES,
    )
    policy = Policy(
        level=probe().level,
        limits=limits,
        read=(*_PYTHON, *files),
        write=tuple(write),
        environ={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "2"},
    )
    with next(slots for most, slots in _slots if seconds <= most):
        done = run([sys.executable, "-I", *words], policy, input=json.dumps(given).encode())
    if done.ok or done.code == REFUSED:
        try:
            said = json.loads(done.stdout)
        except ValueError:
            raise PlatformError(f"{what} could not be read: its reader said nothing") from None
        if done.ok:
            return said
        raise _error_of(said)
    raise Unreadable(f"{what} cannot be read: {_why(done, limits)}", hint="make it smaller or simpler")


def _error_of(said: object) -> OsmosisError:
    body = said if isinstance(said, dict) else {}
    return from_wire(int(body.pop("status", 400)), body)


def _why(done: LimitedResult, limits: Limits) -> str:
    if done.ended is EndedBy.TIME or done.code in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
        return f"it takes more than {limits.cpu_s} s"
    if done.ended is EndedBy.OUTPUT:
        return "it holds more than can be shown"
    if done.ended is EndedBy.MEMORY or b"MemoryError" in done.stderr or done.code in (-signal.SIGKILL, 137):
        return f"it takes more than {limits.memory_mb} MB of memory"
    words = done.stderr.decode(errors="replace").strip().splitlines()
    return words[-1][:300] if words else f"its reader ended with code {done.code}"
