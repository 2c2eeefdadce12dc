"""Jobs as processes on this machine, each in its own session and with an environment made from a short list.

Nothing of the platform's own environment (tokens, master key, provider keys) reaches a job, and nothing of the run is
in the job's: the lease goes through a pipe. A process is only ever
signalled when its start time still matches, so a reused id is never hit.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from osmosis.base.processes import group_alive, is_same, kill_group, start_token
from osmosis.errors import PlatformError
from osmosis.records.base import Record
from osmosis.records.worker import Resources
from osmosis.sandbox import probe
from osmosis.worker.machine_resources import machine_resources

from .executor import Handle, JobStart, JobState

ALLOWED = re.compile(
    r"^(PATH|HOME|USER|LOGNAME|LANG|LC_[A-Z]+|TZ|TMPDIR|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE"
    r"|[A-Za-z]+_PROXY|[a-z]+_proxy|(UV|PIP|NIX|CUDA|NVIDIA|NCCL|OMP|MKL|PYTORCH)_[A-Z0-9_]+|HF_HOME)$"
)
OUTPUT_FILE = "job.log"
LAST_WORDS = 4_000
KEPT_ENDED = 64
"""Ended jobs whose exit codes are remembered, for whoever asks after them next."""


class LocalHandle(Record):
    """By which another worker finds a job of this executor again."""

    executor: str
    machine: str
    pid: int
    start_token: str | None = None
    """None when it had ended before it could be asked."""
    output: str
    """The file it prints to."""


class LocalExecutor:
    """Starts `<command> --run URL` in the job's folder, where what it prints is in `job.log`."""

    name = "local"
    remote = False

    def __init__(
        self,
        command: tuple[str, ...],
        environ: Mapping[str, str],
        *,
        spare: Path | None = None,
        folder: Path | None = None,
        sandboxed: bool = True,
    ) -> None:
        """`spare`: the cache of jobs; while no job runs, a process stands ready for the next one, its imports done,
        which the command has to understand (`--wait CACHE`). None: there is no such process. `folder`: where jobs
        work, whose free space counts. `sandboxed`: unless switched off."""
        self._command = command
        self._keeps_spare = spare
        self._folder = folder
        self._sandboxed = sandboxed
        self._spare: subprocess.Popen[bytes] | None = None
        self._environ = {key: value for key, value in environ.items() if ALLOWED.match(key)}
        self._machine = machine_id()
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, jobs: Sequence[JobStart]) -> list[dict[str, object]]:
        return [self._start(job) for job in jobs]

    def _start(self, job: JobStart) -> dict[str, object]:
        folder = Path(job.entry.work_dir)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        process, content = self._take_spare(), job.entry.model_dump_json().encode()
        with (folder / OUTPUT_FILE).open("wb") as output:
            if process is None:
                process = self._process("--run", job.url, cwd=folder, output=output)
            else:  # it opens its output itself
                content = job.url.encode() + b"\n" + content
        # The job reads it when it has started, and a pipe takes only so much before that.
        hand_over = threading.Thread(target=_write, args=(process, content), daemon=True)
        hand_over.start()
        self._children[process.pid] = process
        handle = LocalHandle(
            executor=self.name,
            machine=self._machine,
            pid=process.pid,
            start_token=start_token(process.pid),
            output=str(folder / OUTPUT_FILE),
        )
        return handle.to_dict()

    def _process(self, *words: str, cwd: Path | None, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [*self._command, *words],
                cwd=cwd,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise PlatformError(f"the job could not be started ({self._command[0]}): {error}") from error

    def _take_spare(self) -> subprocess.Popen[bytes] | None:
        spare, self._spare = self._spare, None
        return spare if spare is not None and spare.poll() is None else None

    def owns(self, handle: Handle) -> bool:
        return handle.get("executor") == self.name and handle.get("machine") == self._machine

    def poll(self, handles: Sequence[Handle]) -> list[JobState]:
        return [self._poll(handle) for handle in handles]

    def _poll(self, handle: Handle) -> JobState:
        job = LocalHandle.model_validate(handle)
        pid = job.pid
        child = self._children.get(pid)
        if child is not None:
            code = child.poll()
            if code is None:
                return JobState(alive=True)
            del self._children[pid]
            return JobState(alive=False, exit_code=code)
        return JobState(alive=is_same(pid, job.start_token))

    def words(self, handle: Handle) -> str:
        return last_words(Path(LocalHandle.model_validate(handle).output))

    def resources(self) -> Resources:
        return machine_resources(self._environ, self._folder or Path.cwd())

    def level(self) -> str:
        return probe().describe if self._sandboxed else "level 0 (--no-sandbox)"

    def reap(self) -> None:
        """A job whose run is over is never polled again: without this it would stay a zombie."""
        ended = [pid for pid, child in self._children.items() if child.poll() is not None]
        for pid in ended[:-KEPT_ENDED]:
            del self._children[pid]
        if self._spare is not None and self._spare.poll() is not None:
            self._spare, self._keeps_spare = None, None  # whatever ended it would end the next one, too
        if self._keeps_spare is not None and self._spare is None and len(ended) == len(self._children):
            # It ends by itself when this process does: nobody holds the other end of its pipe then.
            self._spare = self._process("--wait", str(self._keeps_spare), cwd=None, output=subprocess.DEVNULL)

    def interrupt(self, handle: Handle) -> None:
        job = LocalHandle.model_validate(handle)
        if is_same(job.pid, job.start_token):
            os.kill(job.pid, signal.SIGTERM)

    def kill(self, handle: Handle) -> None:
        """The whole group: also what outlived the job itself, whose group id nobody else can have then."""
        job = LocalHandle.model_validate(handle)
        pid = job.pid
        known = pid in self._children or start_token(pid) in (None, job.start_token)
        if known and group_alive(pid):
            kill_group(pid)
        child = self._children.pop(pid, None)
        if child is not None:
            child.wait(timeout=10)


def _write(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # broken: its last words say why
        pipe.write(content)


def machine_id() -> str:
    """This machine (or container) since its last start: process ids mean nothing on another or after a reboot."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()}-{boot.read_text().strip() if boot.exists() else 'boot'}"


def last_words(path: Path) -> str:
    """The end of a file that a job prints to."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_WORDS))
        return file.read().decode(errors="replace").strip()
