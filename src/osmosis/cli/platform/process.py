"""Find, start and stop the platform process of this machine. A process is signalled only when its id and start time are
the recorded ones. Concurrent starts wait for each other, and the second returns the first's process."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.base import paths
from osmosis.base.jsonable import JsonObject
from osmosis.base.locks import FileLock
from osmosis.base.processes import is_same
from osmosis.client import PlatformClient
from osmosis.errors import Conflict, PlatformError, ValidationError

DEFAULT_PORT = 7575
LEAST_FREE_BYTES = 1024 * 1024
"""Free bytes below which a failed start is blamed on the disk: an empty database alone takes more."""
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 45.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Running:
    pid: int
    url: str
    port: int
    version: str
    started_at: str
    start_token: str


@dataclass(frozen=True)
class StartPlan:
    data_dir: Path
    host: str = "127.0.0.1"
    port: int | None = None
    database_url: str | None = None
    flags: Sequence[str] = ()

    def environ(self) -> dict[str, str]:
        return {"OSMOSIS_DATABASE_URL": self.database_url} if self.database_url else {}

    def command(self, port: int) -> list[str]:
        words = [sys.executable, "-m", "osmosis.platform", "serve", "--data-dir", str(self.data_dir)]
        return [*words, "--host", self.host, "--port", str(port), "--detached", *self.flags]


def find(data_dir: Path) -> Running | None:
    note = _note(data_dir)
    try:
        texts = [str(note[key]) for key in ("version", "started_at", "start_token")]
        running = Running(int(note["pid"]), str(note["url"]), int(note["port"]), *texts)
    except (KeyError, TypeError, ValueError):
        return None
    return running if is_same(running.pid, running.start_token) else None


def start(
    plan: StartPlan, environ: Mapping[str, str], *, say: Callable[[str], None] = lambda _: None
) -> tuple[Running, bool]:
    with _start_lock(plan.data_dir):
        if running := find(plan.data_dir):
            deadline = time.monotonic() + 10.0
            while not healthy(running.url):
                if time.monotonic() > deadline:
                    message = f"the platform (process {running.pid}) is running but not responding at {running.url}"
                    raise PlatformError(message, hint="osmosis platform stop --force, then osmosis platform start")
                time.sleep(_POLL_S)
            return running, False
        port = choose_port(plan, say)
        process, log = _launch(plan.command(port), plan.data_dir, {**environ, **plan.environ()})
        try:
            running = _wait(process, plan.data_dir, log)
        except BaseException:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(10.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            raise
        (plan.data_dir / "port").write_text(f"{port}\n")
        return running, True


def stop(data_dir: Path, *, force: bool = False, timeout_s: float = STOP_TIMEOUT_S) -> Running | None:
    running = find(data_dir)
    if running is None:
        (data_dir / "platform.json").unlink(missing_ok=True)
        return None
    try:
        os.kill(running.pid, signal.SIGKILL if force else signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        message = f"the platform (process {running.pid}) belongs to another user"
        raise PlatformError(message, hint="stop it as that user") from error
    deadline = time.monotonic() + timeout_s
    while is_same(running.pid, running.start_token):
        if time.monotonic() > deadline:
            message = f"the platform (process {running.pid}) did not stop within {timeout_s:.0f} s"
            raise PlatformError(message, hint="osmosis platform stop --force")
        time.sleep(_POLL_S)
    if force:
        (data_dir / "platform.json").unlink(missing_ok=True)
    return running


def choose_port(plan: StartPlan, say: Callable[[str], None] = lambda _: None) -> int:
    if plan.port is not None:
        if plan.port and not _free(plan.host, plan.port):
            message = f"port {plan.port} on {plan.host} is taken by another program"
            raise Conflict(message, hint="osmosis platform start, without --port, picks a free one")
        return plan.port or _any_port(plan.host)
    preferred = _last_port(plan.data_dir) or DEFAULT_PORT
    if _free(plan.host, preferred):
        return preferred
    port = _any_port(plan.host)
    say(f"port {preferred} is taken by another program; using {port}")
    return port


def healthy(url: str) -> bool:
    with PlatformClient(url, None) as client:
        return client.healthy()


def log_file(data_dir: Path) -> Path:
    return data_dir / "logs" / "platform.log"


def _note(data_dir: Path) -> JsonObject:
    try:
        note = json.loads((data_dir / "platform.json").read_text())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _last_port(data_dir: Path) -> int | None:
    try:
        return int((data_dir / "port").read_text())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _start_lock(data_dir: Path) -> Iterator[None]:
    try:
        lock = FileLock(data_dir / "start.lock")
        lock.take(timeout_s=None)
    except OSError as error:
        message = f"cannot write the data folder {data_dir}: {error.strerror}"
        raise ValidationError(message, hint="choose another folder with OSMOSIS_DATA_DIR") from error
    try:
        yield
    finally:
        lock.release()


def _launch(command: Sequence[str], data_dir: Path, environ: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], Path]:
    log = data_dir / "logs" / "start.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in environ.items() if not name.startswith("OSMOSIS_TOKEN")}
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=data_dir,
            env={**inherited, "OSMOSIS_DATA_DIR": str(data_dir)},
            start_new_session=True,
        )
    return process, log


def _wait(process: subprocess.Popen[bytes], data_dir: Path, log: Path) -> Running:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            tail = "\n".join(log.read_text(errors="replace").strip().splitlines()[-8:])
            if shutil.disk_usage(data_dir).free < LEAST_FREE_BYTES:  # then its log is not whole either
                message = f"the platform could not start: there is no space left for its data in {data_dir}"
                raise PlatformError(message, hint=f"df -h {shlex.quote(str(data_dir))}", log=str(log))
            message = f"the platform exited during start-up (exit code {process.returncode}):\n{tail}"
            raise PlatformError(message, hint=f"full log: {log}", log=str(log))
        running = find(data_dir)
        if running and running.pid == process.pid and healthy(running.url):
            return running
        time.sleep(_POLL_S)
    raise PlatformError(f"the platform did not respond within {START_TIMEOUT_S:.0f} s", hint=f"see {log}", log=str(log))


def _bind(host: str, port: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def _free(host: str, port: int) -> bool:
    try:
        return bool(_bind(host, port))
    except OSError:
        return False


def _any_port(host: str) -> int:
    try:
        return _bind(host, 0)
    except OSError as error:
        raise ValidationError(f"cannot listen on {host}: {error.strerror}", hint="--host 127.0.0.1") from error


def data_dir_of(environ: Mapping[str, str]) -> Path:
    return paths.data_dir(environ).absolute()
