"""The trainer of a job, as a process: in the sandbox it is given, with the machine's part of the environment alone, its
output in the run's log, ended when the job ends, however that happens. It is told its plan in a file and answers on a
Unix socket (`osmosis.training.link`); it has neither lease nor token. Whether it is started again is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from osmosis.base.files import write_text
from osmosis.base.processes import lines_of
from osmosis.base.tasks import end
from osmosis.records.base import Record
from osmosis.sandbox import Box, Policy, start

from .commands import Leftovers
from .environ import machine_environ
from .job import TAIL_LINES, JobLog
from .supervisor import describe

STEP = "trainer"
MODULE = "osmosis.training.trainer"
GRACE_S = 10.0
SERVER_KEYS = ("TINKER_API_KEY", "VLLM_API_KEY")
"""The trainer's variables for the key of the one server that it speaks to."""
PREFIXES = ("CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "TORCH_", "PYTORCH_")


class TrainerCommand:
    """How the trainer is started: a Python with its libraries, and where our own code is."""

    def __init__(self, python: Path, code: Path, *, module: str = MODULE) -> None:
        self.argv: Sequence[str] = (str(python), "-m", module)
        self.code = code


def trainer_environ(environ: Mapping[str, str], code: Path, *, secret: str | None = None) -> dict[str, str]:
    """The trainer's variables: the machine's, those of its libraries, where our code is; no secret but an engine's."""
    machine = {k: v for k, v in machine_environ(environ).items() if not k.startswith(("UV_", "PIP_"))}
    libraries = {name: value for name, value in environ.items() if name.startswith(PREFIXES)}
    made = {**machine, **libraries, "PYTHONPATH": str(code), "PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1"}
    return {**made, **dict.fromkeys(SERVER_KEYS, secret)} if secret else made


class TrainerProcess:
    """One life of the trainer after the other: `start`, `wait_died`, `stop`. The socket is the same for all of them."""

    def __init__(
        self,
        command: TrainerCommand,
        environ: Mapping[str, str],
        folder: Path,
        log: JobLog,
        leftovers: Leftovers,
        policy: Policy | None = None,
    ) -> None:
        self._command = command
        self._environ = dict(environ)
        self._folder = folder
        self._log = log
        self._leftovers = leftovers
        self._policy = policy or Policy()
        # The path of a socket may have about a hundred characters; the run's folder can be deeper than that.
        self._socket_dir = Path(tempfile.mkdtemp(prefix="osmosis-trainer-"))
        self.socket = self._socket_dir / "link.sock"
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._box: Box | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._died = asyncio.Event()

    async def start(self, plan: Record) -> None:
        """Starts it with this plan; the link says when it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "trainer-plan.json"
        write_text(file, plan.model_dump_json(indent=1))
        self.socket.unlink(missing_ok=True)
        self.tail.clear()
        self._died = asyncio.Event()
        argv = (*self._command.argv, str(file), str(self.socket))
        write = (*self._policy.write, self._folder, self._socket_dir)
        self._box = await start(argv, replace(self._policy, environ=self._environ, cwd=self._folder, write=write))
        self._leftovers.add(self._box.pid)
        self._tasks = [asyncio.create_task(self._read(self._box)), asyncio.create_task(self._watch(self._box))]

    @property
    def pid(self) -> int | None:
        """Of the process whose end is the trainer's."""
        return self._box.pid if self._box else None

    @property
    def ended(self) -> bool:
        return self._died.is_set()

    @property
    def how(self) -> str:
        """How it ended, in words."""
        code = self._box.exit_code if self._box else None
        return describe(code) if code is not None else "no exit code"

    @property
    def killed(self) -> bool:
        """Whether something ended it by force: where memory runs out, that is the kernel."""
        return self._box is not None and self._box.exit_code == -signal.SIGKILL

    async def wait_died(self) -> None:
        """Returns when it has ended, whoever ended it."""
        await self._died.wait()

    async def stop(self, *, grace_s: float = GRACE_S) -> None:
        """SIGTERM, and after `grace_s` the end of all it started; without harm when there is none."""
        if self._box is not None:
            self._box.ask_to_end()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._died.wait(), grace_s)
            await self._box.close()
            await asyncio.wait(self._tasks, timeout=1.0)
        await end(*self._tasks)

    async def close(self) -> None:
        """Ends it, and removes the socket."""
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self._socket_dir, True)

    async def _read(self, box: Box) -> None:
        async for line in lines_of(box.stdout):
            self.tail.append(line)
            self._log.write(STEP, line, "debug")

    async def _watch(self, box: Box) -> None:
        await box.wait()
        self._died.set()
