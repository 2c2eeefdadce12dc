"""A Harbor environment without containers
(`environment_config="osmosis.testing.harbor_environment:ProcessEnvironment"`): commands run as processes of this
machine, files lie in a temporary folder. It isolates nothing. The absolute paths that Harbor and its tasks use (`/app`,
`/logs`, ...) are moved into the folder wherever they stand in a command, in a variable or in a script. A Dockerfile is
not built; what lies beside it is copied into `/app`."""

import asyncio
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

from osmosis.base.processes import kill_group

MOVED = ("app", "logs", "tests", "solution", "osmosis", "installed-agent", "tmp", "root")
PASSED_ON = re.compile(r"(?i)^(LANG|LC_.*|TZ|SSL_CERT_.*|REQUESTS_CA_BUNDLE|UV_.*|PIP_.*|.*_proxy)\Z")
MARK = "OSMOSIS_PROCESS_ENVIRONMENT"
TIMED_OUT = 124


class ProcessEnvironment(BaseEnvironment):
    """One folder and the processes started in it; both are gone after `stop(delete=True)`.

    `python`: the interpreter behind `python3` and `python` inside; this process's own unless given. `path`: further
    folders before the machine's PATH."""

    def __init__(self, *args: Any, python: str | None = None, path: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._python = python or sys.executable
        self._path = list(path)
        self._root: Path | None = None
        self._groups: set[int] = set()

    @staticmethod
    def type() -> str:
        return "process"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities()

    def _validate_definition(self) -> None:
        return

    @property
    def root(self) -> Path:
        if self._root is None:
            raise RuntimeError("the environment has not been started")
        return self._root

    async def start(self, force_build: bool) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="osmosis-sandbox-"))
        for name in (*MOVED, "bin", "logs/agent", "logs/verifier", "logs/artifacts"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        for name in ("python", "python3"):
            # A link would make a virtual environment's Python forget which environment it is.
            launcher = self._root / "bin" / name
            launcher.write_text(f'#!/bin/sh\nexec "{self._python}" "$@"\n', encoding="utf-8")
            launcher.chmod(0o755)
        if self.environment_dir.is_dir():
            ignore = shutil.ignore_patterns("Dockerfile", "docker-compose.yaml")
            shutil.copytree(self.environment_dir, self._root / "app", dirs_exist_ok=True, ignore=ignore)

    async def stop(self, delete: bool) -> None:
        for group in self._groups:
            kill_group(group)
        self._groups.clear()
        # A daemon has left its group; its environment still says where it comes from.
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get(MARK) == str(self._root):
                with suppress(psutil.Error):
                    process.kill()
        if delete and self._root is not None:
            await asyncio.to_thread(shutil.rmtree, self._root, True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        environ = self._merge_env(env) or {}
        passed = {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
        path = [str(self.root / "bin"), *self._path, os.environ.get("PATH", os.defpath)]
        own = {"HOME": str(self.root / "root"), "TMPDIR": str(self.root / "tmp"), MARK: str(self.root)}
        own["TMUX_TMPDIR"] = own["TMPDIR"]  # a tmux server of its own: agents of two trials name their sessions alike
        moved = {name: self._moved(value) for name, value in environ.items()}
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", self._moved(command)),
            cwd=self.where(cwd or self.task_env_config.workdir or "/app"),
            env={**passed, "PATH": os.pathsep.join(path), **own, **moved},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._groups.add(process.pid)
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_sec)
        except asyncio.TimeoutError:
            kill_group(process.pid)
            return ExecResult(stdout=None, stderr=f"timed out after {timeout_sec} s", return_code=TIMED_OUT)
        except BaseException:
            kill_group(process.pid)
            raise
        code = process.returncode if process.returncode is not None else 1
        return ExecResult(stdout=out.decode(errors="replace"), stderr=err.decode(errors="replace"), return_code=code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        target = self.where(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(shutil.copy2, source_path, target)
        self._move_in(target)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        target = self.where(target_dir)
        await asyncio.to_thread(shutil.copytree, source_dir, target, dirs_exist_ok=True)
        for path in target.rglob("*"):
            if path.is_file():
                self._move_in(path)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(shutil.copy2, self.where(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await asyncio.to_thread(_copy_out, self.where(source_dir), Path(target_dir))

    def where(self, path: str) -> Path:
        inside = Path(self._moved(path))
        return inside if inside.is_relative_to(self.root) else self.root / path.lstrip("/")

    def _moved(self, text: str) -> str:
        root = re.escape(str(self.root))
        return re.sub(rf"({root}[^\s'\":;]*)|(?<![\w./-])/({'|'.join(MOVED)})(?![\w-])", self._move, text)

    def _move(self, match: re.Match[str]) -> str:
        return match.group(1) or f"{self.root}/{match.group(2)}"

    def _move_in(self, path: Path) -> None:
        if path.suffix in {".sh", ".bash"}:
            path.write_text(self._moved(path.read_text(encoding="utf-8")), encoding="utf-8")


def _copy_out(source: Path, target: Path) -> None:
    """Copy links as links, as an archive does: followed, they would lead out of the folder."""
    for path in sorted(source.rglob("*")):
        destination = target / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            destination.mkdir(parents=True, exist_ok=True)
        else:
            destination.parent.mkdir(parents=True, exist_ok=True)
            destination.unlink(missing_ok=True)
            shutil.copy2(path, destination, follow_symlinks=False)
