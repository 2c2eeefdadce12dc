"""The trainer of a job, as a process in a sandbox, with the machine's part of the environment alone. Its output goes to
the run's log, and it ends when the job ends, however that happens. It has neither lease nor token; it answers on a Unix
socket (`osmosis.training.protocol`)."""

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
from osmosis.base.processes import end_tasks, iterate_lines
from osmosis.jobs.commands import Leftovers, machine_environ
from osmosis.jobs.context import TAIL_LINES, JobLog
from osmosis.jobs.server.supervisor import describe
from osmosis.records.base import Record
from osmosis.sandbox import Box, Policy, start

STEP = "trainer"
MODULE = "osmosis.training.trainer"
GRACE_S = 10.0
SERVER_KEYS = ("TINKER_API_KEY", "VLLM_API_KEY")
PREFIXES = ("CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "TORCH_", "PYTORCH_")


class TrainerCommand:
    def __init__(self, python: Path, code: Path, *, module: str = MODULE) -> None:
        self.argv: Sequence[str] = (str(python), "-m", module)
        self.code = code


def trainer_environ(environ: Mapping[str, str], code: Path, *, secret: str | None = None) -> dict[str, str]:
    machine = {k: v for k, v in machine_environ(environ).items() if not k.startswith(("UV_", "PIP_"))}
    libraries = {name: value for name, value in environ.items() if name.startswith(PREFIXES)}
    variables = {**machine, **libraries, "PYTHONPATH": str(code), "PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1"}
    return {**variables, **dict.fromkeys(SERVER_KEYS, secret)} if secret else variables


class TrainerProcess:
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
        return self._box.pid if self._box else None

    @property
    def ended(self) -> bool:
        return self._died.is_set()

    @property
    def exit_description(self) -> str:
        code = self._box.exit_code if self._box else None
        return describe(code) if code is not None else "no exit code"

    @property
    def was_killed(self) -> bool:
        """True when it was ended by force, as the kernel does when memory runs out."""
        return self._box is not None and self._box.exit_code == -signal.SIGKILL

    async def wait_died(self) -> None:
        await self._died.wait()

    async def stop(self, *, grace_s: float = GRACE_S) -> None:
        if self._box is not None:
            self._box.ask_to_end()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._died.wait(), grace_s)
            await self._box.close()
            await asyncio.wait(self._tasks, timeout=1.0)
        await end_tasks(*self._tasks)

    async def close(self) -> None:
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self._socket_dir, True)

    async def _read(self, box: Box) -> None:
        async for line in iterate_lines(box.stdout):
            self.tail.append(line)
            self._log.write(STEP, line, "debug")

    async def _watch(self, box: Box) -> None:
        await box.wait()
        self._died.set()
