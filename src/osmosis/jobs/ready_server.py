"""A rollout server that stands ready: its sandbox made, its Python started and its imports done before there is a run
for it. The trusted half of `ready_process`.

It has the environment of the last run on this machine, is stopped until a run of the same environment and sandbox comes
(so it uses no processor), serves once, and is thrown away where anything differs. Before that run it knows nothing of
it: its folders are empty, and get the run's names outside when the run begins; the run's variables come through its
standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from osmosis.base.files import write_text
from osmosis.base.processes import start_token
from osmosis.errors import SandboxUnavailable
from osmosis.records.base import Record
from osmosis.records.ready_order import READY, ReadyOrder
from osmosis.records.sandbox import SandboxSettings
from osmosis.sandbox import Box, Level, Policy, start
from osmosis.sandbox.bubblewrap import variables
from osmosis.sandbox.network import own_addresses

from .boundary import Boundary, ServerFolders
from .environ import rollout_environ
from .job import JobFailed

MODULE = "osmosis.jobs.ready_process"
READY_S = 30.0
"""How long it may take to become ready."""
NOTE = "last.json"


class LastServer(Record):
    """What the next run most likely needs: the rollout server of the last one. In the cache of this machine."""

    environment: str
    """The folder of its virtual environment."""
    interpreter: str
    sandbox: SandboxSettings

    @classmethod
    def of(cls, cache_dir: Path) -> LastServer | None:
        """None: there was no run yet, or none that can be repeated."""
        try:
            return cls.model_validate_json((_place(cache_dir) / NOTE).read_bytes())
        except (OSError, ValidationError):
            return None

    def keep(self, cache_dir: Path) -> None:
        """For the next process that stands ready."""
        if self != LastServer.of(cache_dir):
            _place(cache_dir).mkdir(parents=True, exist_ok=True)
            write_text(_place(cache_dir) / NOTE, self.model_dump_json())


class ReadyServer:
    """One that stands ready. Made by `start`; `take`, then `begin`; `close` ends one that was not used."""

    def __init__(self, known: LastServer, boundary: Boundary, folder: Path, box: Box) -> None:
        self._known = known
        self._boundary = boundary
        self._folder = folder
        self._box: Box | None = box
        self._outside = _outside(known)
        self._taken: Path | None = None

    @classmethod
    async def start(cls, cache_dir: Path, environ: Mapping[str, str]) -> ReadyServer | None:
        """None where nothing is known of the next run, or no such process can be had. `environ` is the machine's."""
        known = LastServer.of(cache_dir)
        if known is None or known.sandbox.server_s is not None or not Path(known.environment).is_dir():
            return None
        try:
            boundary = Boundary.under(known.sandbox, gate_only=False)
        except JobFailed:
            return None
        if boundary.level is Level.NONE:
            return None
        _remove_leftovers(_place(cache_dir))
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=_place(cache_dir)))
        try:
            box = await _started(known, boundary, folder, environ)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if box is None:
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return cls(known, boundary, folder, box)

    async def take(self, work_dir: Path) -> None:
        """It is of the run with this folder now, whose empty folders its own become."""
        new, old = ServerFolders.under(work_dir), ServerFolders.under(self._folder)
        try:
            if new.commit.exists() or new.artifacts.exists():
                raise FileExistsError("an earlier attempt at this run has left its files")
            os.rename(old.commit, new.commit)
            os.rename(old.artifacts, new.artifacts)
        except OSError:
            await self.close()
            return
        self._taken = work_dir
        self._folder.rmdir()

    async def begin(self, argv: Sequence[str], policy: Policy) -> Box | None:
        """Its sandbox, in which it becomes `argv`; None, and its end, where that is another sandbox or environment."""
        box, work_dir = self._box, self._taken
        if box is None:
            return None
        if work_dir is None or box.exit_code is not None or not self._fits(argv, policy, work_dir):
            await self.close()
            return None
        self._box = None
        old, new = ServerFolders.under(self._folder), ServerFolders.under(work_dir)
        environ = {**variables(policy), "PWD": str(policy.cwd)}
        order = ReadyOrder(arguments=list(argv[1:]), environ=environ, cwd=str(policy.cwd))
        box.thaw(order.model_dump_json().encode(), moved={old.artifacts: new.artifacts})
        return box

    async def close(self) -> None:
        """Ends it, unless it has become a server. May be called twice."""
        box, self._box = self._box, None
        if box is not None:
            await box.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _fits(self, argv: Sequence[str], policy: Policy, work_dir: Path) -> bool:
        mine = _policy(self._known, self._boundary, ServerFolders.under(work_dir))
        same = replace(policy, environ={}, cwd=None) == mine and argv[0] == str(_python(self._known))
        return same and self._outside == _outside(self._known)


async def _started(known: LastServer, boundary: Boundary, folder: Path, environ: Mapping[str, str]) -> Box | None:
    """Ready and stopped; None when it does not become ready."""
    folders = ServerFolders.under(folder)
    folders.commit.mkdir()
    variables = rollout_environ(environ, env={}, secrets={}, venv=known.environment)
    policy = replace(_policy(known, boundary, folders), environ={**variables, "PYTHONUNBUFFERED": "1"})
    try:
        box = await start([str(_python(known)), "-m", MODULE], policy, takes_orders=True)
    except (SandboxUnavailable, OSError):
        return None
    try:
        said = await asyncio.wait_for(box.stdout.readline(), READY_S)
        if said.strip() == READY.encode():
            await box.freeze()
            return box
    except (asyncio.TimeoutError, ValueError):  # it prints something else, and much of it
        pass
    except BaseException:
        await box.close()
        raise
    await box.close()
    return None


def _policy(known: LastServer, boundary: Boundary, folders: ServerFolders) -> Policy:
    return boundary.of_server(folders, [Path(known.environment)], Path(known.interpreter))


def _python(known: LastServer) -> Path:
    return Path(known.environment, "bin", "python")


def _outside(known: LastServer) -> tuple[int, tuple[str, ...]]:
    """What a sandbox is made for once, and what may change while it stands: the environment's folder, and the addresses
    of this machine that nothing inside may reach."""
    with contextlib.suppress(OSError):
        return Path(known.environment).stat().st_ino, tuple(own_addresses())
    return 0, ()


def _place(cache_dir: Path) -> Path:
    return cache_dir / "ready-servers"


def _remove_leftovers(place: Path) -> None:
    """Folders of processes that were killed: their names say whose they were."""
    for folder in place.iterdir():
        maker = folder.name.partition("-")[0]
        if maker.isdigit() and not start_token(int(maker)):
            shutil.rmtree(folder, ignore_errors=True)
