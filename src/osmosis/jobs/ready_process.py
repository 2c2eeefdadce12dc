"""A rollout server's process before its run is known: `python -m osmosis.jobs.ready_process`, in a rollout's sandbox
and with a rollout's Python. It imports what every rollout server imports, says that it is ready, and waits.

What comes on standard input then is a `ReadyOrder`: it becomes the process that this command line, these variables and
this folder would have started. Where it would make a difference that so much is loaded already (a variable that Python
reads when it starts, a file of the rollout with the name of a loaded module), it starts that process in its place.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import SourceFileLoader, all_suffixes
from pathlib import Path
from types import ModuleType

import fastapi
import uvicorn
import uvicorn.lifespan.on
import uvicorn.loops.asyncio
import uvicorn.protocols.http.httptools_impl
import uvicorn.protocols.websockets.auto

from osmosis.base.collector import calm_collector
from osmosis.jobs import host
from osmosis.records.base import Record
from osmosis.records.ready_order import READY, ReadyOrder
from osmosis.records.rollout import Rollout
from osmosis.records.wire import RolloutAccepted, RolloutInit, ServerHealth

RECORDS: tuple[type[Record], ...] = (ReadyOrder, RolloutInit, RolloutAccepted, ServerHealth, Rollout)
"""Those of each rollout. They are built at their first use, and at that moment somebody waits."""
LOADED = (fastapi, uvicorn.lifespan.on, uvicorn.loops.asyncio, uvicorn.protocols.http, uvicorn.protocols.websockets)
"""What is loaded to make an app and to serve it."""
READ_AT_START = re.compile(r"PYTHON|LD_|MALLOC_|GLIBC_|LANG|LC_|TZ$|OPENSSL_|PYDANTIC_|OTEL_")
"""Variables that the interpreter, its libraries or what is loaded here read once."""
SCRIPT_PATHS = "PYTHONPATH"


def main() -> int:
    """The exit code of the rollout server; 0 when none is wanted."""
    for kind in RECORDS:
        kind.model_rebuild()
    begun_with = _steering(os.environ)
    calm_collector()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    given = sys.stdin.buffer.read()
    if not given:
        return 0
    order = ReadyOrder.model_validate_json(given)
    _without_input()
    os.chdir(order.cwd)
    path = _search_path(order)
    if not _understood(order.arguments) or _steering(order.environ) != begun_with or shadows(path, sys.modules):
        os.execve(sys.executable, [sys.executable, *order.arguments], order.environ)
    os.environ.clear()
    os.environ.update(order.environ)
    sys.path[:1] = path
    sys.orig_argv = [sys.executable, *order.arguments]
    if order.arguments[0] == "-m":
        sys.argv = [str(host.__file__), *order.arguments[2:]]
        return run_script(Path(sys.argv[0]))
    sys.argv = list(order.arguments)
    return run_script(Path(order.cwd, order.arguments[0]))


def _understood(arguments: Sequence[str]) -> bool:
    return arguments[:2] == ["-m", host.__name__] or (len(arguments) == 1 and not arguments[0].startswith("-"))


def _steering(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if READ_AT_START.match(name) and name != SCRIPT_PATHS}


def _search_path(order: ReadyOrder) -> list[str]:
    """What a new process would have in front of its own folders."""
    first = order.cwd if order.arguments[0] == "-m" else str(Path(order.cwd, order.arguments[0]).parent)
    return [first, *filter(None, order.environ.get(SCRIPT_PATHS, "").split(os.pathsep))]


def shadows(path: Iterable[str], loaded: Mapping[str, ModuleType]) -> bool:
    """Whether a module in these folders would have been imported in the place of one that is loaded."""
    suffixes = tuple(all_suffixes())
    for folder in map(Path, path):
        try:
            entries = list(folder.iterdir())
        except OSError:
            continue
        for entry in entries:
            name, dot, _ = entry.name.partition(".")
            if name in loaded and (entry.name.endswith(suffixes) if dot else (entry / "__init__.py").exists()):
                return True
    return False


def run_script(path: Path) -> int:
    """Runs a file as `python FILE` does: as `__main__`, with a traceback that begins there."""
    module = ModuleType("__main__")
    module.__file__, module.__loader__ = str(path), SourceFileLoader("__main__", str(path))
    sys.modules["__main__"] = module
    try:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    except Exception as problem:  # noqa: BLE001 - as the interpreter ends a script, without our own frames
        trace = problem.__traceback__ and problem.__traceback__.tb_next
        sys.excepthook(type(problem), problem.with_traceback(trace), trace)
        return 1
    return 0


def _without_input() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
