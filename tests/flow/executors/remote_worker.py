"""A platform without a worker of its own, and `osmosis worker start` beside it, as a person starts it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.platform_process import PlatformProcess

SECRET = "the-secret-value"


@contextmanager
def platform_without_worker(
    folder: Path, prepare: Callable[[PlatformProcess, Path], None] = PlatformProcess.prepare, **options: str
) -> Iterator[PlatformProcess]:
    platform = PlatformProcess(folder / "data", **{"no_worker": "", "lease": "8", **options})
    platform.start()
    try:
        platform.login()
        prepare(platform, folder / "checkout")
        secret = {"name": "API_KEY", "value": SECRET, "scope": "workspace"}
        platform.json("POST", "environment-secrets", json=secret)
        yield platform
    finally:
        platform.end()


class RemoteWorker:
    """Told by a `worker.toml`; it may be killed and started again over its folder."""

    def __init__(self, platform: PlatformProcess, folder: Path, config: str, environ: Mapping[str, str]) -> None:
        self.folder, self.environ = folder, environ
        folder.mkdir()
        (folder / "worker.toml").write_text(config)
        made = platform.json("POST", "tokens", json={"name": folder.name, "scopes": ["worker"]})
        self.token = str(made["token"])
        (folder / "token").write_text(self.token)
        self.url = platform.url
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--platform-url", self.url, "--token-file", str(self.folder / "token"), "--name", self.folder.name]
        options += ["--config", str(self.folder / "worker.toml"), "--data-dir", str(self.folder / "jobs")]
        with (self.folder / "worker.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "osmosis", "worker", "start", *options],
                env={**self.environ, "OSMOSIS_WORKER_TOKEN": "not this one", "PYTHONFAULTHANDLER": "1"},
                stdout=output,
                stderr=output,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGABRT)  # it writes what its threads do into its log
                self.process.wait(10)
                raise AssertionError(self.log) from None

    @property
    def log(self) -> str:
        return (self.folder / "worker.log").read_text()

    def job_folder(self, platform: PlatformProcess, name: str) -> Path:
        return self.folder / "jobs" / "runs" / str(platform.run(name)["id"])


@contextmanager
def remote_worker(
    platform: PlatformProcess, folder: Path, config: str, environ: Mapping[str, str] | None = None
) -> Iterator[RemoteWorker]:
    worker = RemoteWorker(platform, folder, config, environ or os.environ)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
