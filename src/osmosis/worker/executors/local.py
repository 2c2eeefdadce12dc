import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from osmosis.base.hardware import gpu_names, list_gpus, memory_bytes
from osmosis.base.processes import is_group_alive, is_same, kill_group, start_token
from osmosis.errors import PlatformError
from osmosis.records.base import Record
from osmosis.records.config.worker import Resources
from osmosis.sandbox import probe
from osmosis.worker.executors.executor import Handle, JobStart, JobState

ALLOWED = re.compile(
    r"^(PATH|HOME|USER|LOGNAME|LANG|LC_[A-Z]+|TZ|TMPDIR|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE"
    r"|[A-Za-z]+_PROXY|[a-z]+_proxy|(UV|PIP|NIX|CUDA|NVIDIA|NCCL|OMP|MKL|PYTORCH|VLLM)_[A-Z0-9_]+|HF_HOME|OSMOSIS_VLLM)$"
)
OUTPUT_FILE = "job.log"
LAST_WORDS = 4_000
KEPT_ENDED = 64


class LocalHandle(Record):
    executor: str
    machine: str
    pid: int
    start_token: str | None = None  # start time as text; None when the process had ended before it could be read
    output: str
    gpus: list[str] = Field(default_factory=list)


class LocalExecutor:
    name = "local"
    remote = False

    def __init__(
        self,
        command: tuple[str, ...],
        environ: Mapping[str, str],
        *,
        folder: Path | None = None,
        sandboxed: bool = True,
    ) -> None:
        """`folder` is where jobs work, whose free space counts; `sandboxed` is False with `--no-sandbox`."""
        self._command = command
        self._folder = folder
        self._sandboxed = sandboxed
        self._environ = {key: value for key, value in environ.items() if ALLOWED.match(key)}
        self._machine = machine_id()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._gpus: dict[int, list[str]] = {}
        """The GPUs that a job alone has, by its process id."""

    def start(self, jobs: Sequence[JobStart]) -> list[dict[str, object]]:
        return [self._start(job) for job in jobs]

    def _start(self, job: JobStart) -> dict[str, object]:
        folder = Path(job.entry.work_dir)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = job.entry.model_dump_json().encode()
        gpus = self._choose_gpus(job.needs.gpus or 0)
        environ = {**self._environ, **({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})}
        try:
            with (folder / OUTPUT_FILE).open("wb") as output:
                process = subprocess.Popen(
                    [*self._command, "--run", job.url], cwd=folder, env=environ, start_new_session=True,
                    stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                )  # fmt: skip
        except OSError as error:
            raise PlatformError(f"the job could not be started ({self._command[0]}): {error}") from error
        # The job reads it when it has started, and a pipe takes only so much before that.
        threading.Thread(target=_write, args=(process, content), daemon=True).start()
        self._children[process.pid] = process
        handle = LocalHandle(
            executor=self.name,
            machine=self._machine,
            pid=process.pid,
            start_token=start_token(process.pid),
            output=str(folder / OUTPUT_FILE),
            gpus=gpus,
        )
        self._gpus[process.pid] = gpus
        return handle.to_dict()

    def _choose_gpus(self, count: int) -> list[str]:
        used = {name for pid, names in self._gpus.items() if is_group_alive(pid) for name in names}
        free = [name for name in gpu_names(self._environ) if name not in used] if count else []
        if len(free) < count:
            raise PlatformError(f"the job needs {count} GPUs, and {len(free)} are free")
        return free[:count]

    def owns(self, handle: Handle) -> bool:
        return handle.get("executor") == self.name and handle.get("machine") == self._machine

    def poll(self, handles: Sequence[Handle]) -> list[JobState]:
        return [self._poll(handle) for handle in handles]

    def _poll(self, handle: Handle) -> JobState:
        job = LocalHandle.model_validate(handle)
        pid = job.pid
        self._gpus.setdefault(pid, job.gpus)  # of a job that an earlier life of this worker started
        child = self._children.get(pid)
        if child is not None:
            code = child.poll()
            if code is None:
                return JobState(alive=True)
            del self._children[pid]
            return JobState(alive=False, exit_code=code)
        return JobState(alive=is_same(pid, job.start_token))

    def read_output(self, handle: Handle) -> str:
        return last_words(Path(LocalHandle.model_validate(handle).output))

    def resources(self) -> Resources:
        folder = self._folder or Path.cwd()
        while not folder.exists():
            folder = folder.parent
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        disk_mb = shutil.disk_usage(folder).free // MB
        return Resources(cpus=cpus, memory_mb=memory_bytes() // MB, gpus=len(list_gpus(self._environ)), disk_mb=disk_mb)

    def level(self) -> str:
        return probe().describe if self._sandboxed else "level 0 (--no-sandbox)"

    def reap(self) -> None:
        ended = [pid for pid, child in self._children.items() if child.poll() is not None]
        for pid in ended[:-KEPT_ENDED]:
            del self._children[pid]

    def interrupt(self, handle: Handle) -> None:
        job = LocalHandle.model_validate(handle)
        if is_same(job.pid, job.start_token):
            os.kill(job.pid, signal.SIGTERM)

    def kill(self, handle: Handle) -> None:
        job = LocalHandle.model_validate(handle)
        pid = job.pid
        is_ours = pid in self._children or start_token(pid) in (None, job.start_token)
        if is_ours and is_group_alive(pid):
            kill_group(pid)
        child = self._children.pop(pid, None)
        if child is not None:
            child.wait(timeout=10)


def _write(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # broken: its last words say why
        pipe.write(content)


def machine_id() -> str:
    """Return an id of this machine (or container) since its last start: process ids are valid only there."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()}-{boot.read_text().strip() if boot.exists() else 'boot'}"


def last_words(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_WORDS))
        return file.read().decode(errors="replace").strip()


MB = 1024 * 1024
