"""Create the trainer's environment, torch and its libraries, by uv once for a machine, installed from a lock that names
the download's size first. A machine without a GPU gets the CPU build. osmosis comes by PYTHONPATH, so a new version
needs no new environment."""

import asyncio
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, cast
from urllib.parse import unquote, urlsplit

import uv

from osmosis.base import installation
from osmosis.base.files import tomllib
from osmosis.base.hardware import TRAINER_PYTHON, find_python, list_gpus, pip_find_links
from osmosis.base.locks import locked_async
from osmosis.jobs.commands import CommandResult, run_command, uv_environ
from osmosis.jobs.context import TAIL_LINES, JobContext, JobFailed, JobLog, setup_failure
from osmosis.jobs.prepare.environment import VERSION_OF, explain_output, is_network_failure
from osmosis.metrics.formats import size
from osmosis.records.run.job import TorchBuild
from osmosis.records.run.rollout import Category

STEP = "trainer-environment"
EXTRA = "train"
GPU_EXTRA = "train-gpu"
VLLM = "vllm>=0.12,<0.34"  # No extra of osmosis, because its pins and those of `train` exclude each other
LAYOUT = "1"
WORKSPACE = "trainer"
RESOLVE_S = 300.0
INSTALL_S = 3600.0
LOCK = "pylock.toml"
NO_PYTHON = "training needs Python {}.{} or newer on the platform's machine, which has none; the trainer's libraries do"
PYTHON_FIX = "install a newer Python beside the present one (nothing else has to change), for example python3.12"


@dataclass(frozen=True, slots=True)
class TrainerLock:
    packages: Mapping[str, str]
    download_bytes: int
    path: Path

    @property
    def cuda(self) -> bool:
        return any(name.startswith("nvidia-") for name in self.packages) or "+cu" in self.packages["torch"]

    @property
    def words(self) -> str:
        torch = f"torch {self.packages['torch'].partition('+')[0]} ({'CUDA' if self.cuda else 'CPU'})"
        return f"{torch}, {len(self.packages)} packages, {size(self.download_bytes)}"


@dataclass(frozen=True, slots=True)
class TrainerEnvironment:
    folder: Path
    code: Path
    packages: Mapping[str, str]
    python_version: str

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


class _File(TypedDict, total=False):
    url: str
    size: int


class _Package(TypedDict, total=False):
    name: str
    version: str
    wheels: list[_File]
    archive: _File


@dataclass(frozen=True, slots=True)
class TrainerBuilder:
    uv: str
    cache_dir: Path
    wheel: installation.Wheel
    environ: Mapping[str, str]
    log: JobLog
    torch: TorchBuild = "auto"
    extras: Sequence[str] = (EXTRA,)
    packages: Sequence[str] = ()  # More requirements, beside those of the extras
    name: str = "the trainer's environment"
    started: Callable[[int], None] | None = None
    """Called with each process group that is started, so that a killed job's successor can end it."""

    async def environment(self) -> TrainerEnvironment:
        python, version = await self._python()
        # Beside those of the workspaces, as if it were one more of them: what nobody uses for long is removed alike.
        links = pip_find_links(self.environ)
        build = "cuda" if self._wants_cuda() else "cpu"
        parts = [LAYOUT, self.torch, build, str(python), version, *links, *self._wanted]
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        folder = self.cache_dir / "environments" / WORKSPACE / key
        waiting = self.log.stream(STEP)
        lock = folder.parent / ".locks" / folder.name
        async with locked_async(lock, waiting=lambda: waiting("waiting: another job is creating this environment")):
            code = await asyncio.to_thread(installation.unpack_wheel, self.wheel)
            if (finished := _finished(folder, code)) is None:
                finished = await self._make(folder, code, python, version)
            else:
                self.log.write(STEP, f"using the environment {folder.name} (torch {finished.packages['torch']})")
        return finished

    async def plan(self, folder: Path) -> TrainerLock:
        python, _ = await self._python()
        return await self._resolve(folder, python)

    async def _python(self) -> tuple[Path, str]:
        python = await asyncio.to_thread(find_python, TRAINER_PYTHON, self.environ)
        if python is None:
            raise setup_failure(NO_PYTHON.format(*TRAINER_PYTHON), fix=PYTHON_FIX, category=Category.UNKNOWN)
        command = (str(python), "-I", "-c", VERSION_OF)
        result = await run_command(command, cwd=self.cache_dir, environ=uv_environ(self.environ), timeout_s=60)
        return python, result.stdout.strip()

    @property
    def _wanted(self) -> list[str]:
        extras = (*self.extras, GPU_EXTRA) if self.extras and self._wants_cuda() else self.extras
        return sorted({*self.packages, *(line for extra in extras for line in installation.list_requirements(extra))})

    def _wants_cuda(self) -> bool:
        return self.torch == "cuda" or (self.torch == "auto" and bool(list_gpus(self.environ)))

    async def _make(self, folder: Path, code: Path, python: Path, version: str) -> TrainerEnvironment:
        making = folder.parent / f".making-{folder.name}-{secrets.token_hex(4)}"
        await asyncio.to_thread(installation.remove_folders, folder, *folder.parent.glob(f".making-{folder.name}-*"))
        making.parent.mkdir(parents=True, exist_ok=True)
        try:
            venv = ("venv", "--quiet", "--relocatable", "--no-project", "--python", str(python), str(making))
            await self._checked(*venv, cwd=making.parent)
            lock = await self._resolve(making, python)
            self.log.write(STEP, f"creating {self.name}, once for this machine: {lock.words} to fetch")
            install = ("pip", "install", "--python", str(making), "--no-deps", "-r", str(lock.path))
            await self._checked(*install, cwd=making, timeout_s=INSTALL_S)
            mark = {"python": version, "packages": dict(lock.packages)}
            (making / installation.MARKER).write_text(json.dumps(mark, indent=1), encoding="utf-8")
            making.rename(folder)
        finally:
            await asyncio.to_thread(installation.remove_folders, making)
        finished = _finished(folder, code)
        assert finished is not None
        self.log.write(STEP, f"{self.name} is ready: {folder.name}")
        return finished

    async def _resolve(self, folder: Path, python: Path) -> TrainerLock:
        requirements, lock = folder / "requirements.in", folder / LOCK
        requirements.write_text("\n".join(self._wanted) + "\n", encoding="utf-8")
        links = [f"--find-links={link}" for link in pip_find_links(self.environ)]
        resolve = ("pip", "compile", "--quiet", "--format", "pylock.toml", "--python", str(python), *links)
        resolve = (*resolve, "-o", str(lock), str(requirements))
        if not self._wants_cuda():
            for extra in (await self._cpu_pin(folder, python, links), ("--torch-backend", "cpu")):
                if extra and (await self._uv(*resolve, *extra, cwd=folder)).ok and not (resolved := _read(lock)).cuda:
                    return resolved
        lock.unlink(missing_ok=True)  # what is in it would be preferred
        done = await self._uv(*resolve, cwd=folder)
        if not done.ok:
            raise _failed(done, f"the packages of {self.name} cannot be resolved")
        resolved = _read(lock)
        if not self._wants_cuda() and resolved.cuda:
            message = f"only the CUDA build of torch can be had from here ({resolved.words} to fetch)"
            remedy = "set PIP_FIND_LINKS to where a CPU wheel of torch is, or let this machine reach PyTorch's index"
            if self.torch == "cpu":
                fix = f"{remedy}; or set OSMOSIS_TORCH=cuda on the platform"
                raise setup_failure(f"{message}, but the CPU build is asked for", fix=fix, category=Category.CONNECTION)
            self.log.write(STEP, f"this machine has no GPU, but {message}; for a smaller one {remedy}", "warning")
        return resolved

    async def _cpu_pin(self, folder: Path, python: Path, links: Sequence[str]) -> tuple[str, ...]:
        if not links:
            return ()
        requirements, answer = folder / "torch.in", folder / "pylock.torch.toml"
        requirements.write_text("torch\n", encoding="utf-8")
        ask = ("pip", "compile", "--quiet", "--no-index", "--no-deps", "--format", "pylock.toml", *links)
        if not (await self._uv(*ask, "--python", str(python), "-o", str(answer), str(requirements), cwd=folder)).ok:
            return ()
        version = _read(answer).packages["torch"]
        if "+cpu" not in version:
            return ()
        pin = folder / "torch.txt"
        pin.write_text(f"torch=={version}\n", encoding="utf-8")
        return ("--constraints", str(pin))

    async def _checked(self, *arguments: str, cwd: Path, timeout_s: float = RESOLVE_S) -> None:
        done = await self._uv(*arguments, cwd=cwd, timeout_s=timeout_s)
        if not done.ok:
            raise _failed(done, f"{self.name} cannot be created")

    async def _uv(self, *arguments: str, cwd: Path, timeout_s: float = RESOLVE_S) -> CommandResult:
        async def run(*extra: str) -> CommandResult:
            return await run_command(
                (self.uv, *arguments, *extra),
                cwd=cwd,
                environ=uv_environ(self.environ),
                timeout_s=timeout_s,
                log=self.log.stream(STEP, "debug"),
                started=self.started,
            )

        done = await run()
        if (
            not done.ok
            and done.code is not None
            and is_network_failure(done.output)
            and "--torch-backend" not in arguments
        ):
            offline = await run("--offline")
            done = offline if offline.ok else done
        return done


def _read(lock: Path) -> TrainerLock:
    packages = cast(list[_Package], tomllib.loads(lock.read_text(encoding="utf-8"))["packages"])
    versions = {package["name"]: package.get("version", "") for package in packages}
    files = [(package.get("wheels") or [package.get("archive", _File())])[0] for package in packages]
    return TrainerLock(versions, sum(_bytes(file) for file in files), lock)


def _bytes(file: _File) -> int:
    url = urlsplit(file.get("url", ""))
    if "size" in file or url.scheme != "file":
        return file.get("size", 0)
    with suppress(OSError):
        return Path(unquote(url.path)).stat().st_size
    return 0


def _failed(done: CommandResult, message: str) -> JobFailed:
    tail = "\n".join(done.output.splitlines()[-TAIL_LINES:])
    fix = "check the network of the machine that the job runs on (proxy, UV_* and PIP_* settings), then retry the run"
    if done.code is None:
        return setup_failure(f"{message} within the time limit", fix=fix, category=Category.TIMEOUT, tail=tail)
    category = Category.CONNECTION if is_network_failure(done.output) else Category.UNKNOWN
    return setup_failure(f"{message}: {explain_output(done.output)}", fix=fix, category=category, tail=tail)


def _finished(folder: Path, code: Path) -> TrainerEnvironment | None:
    if (marker := installation.read_marker(folder)) is None:
        return None
    environment = TrainerEnvironment(folder, code, marker["packages"], marker["python"])
    return environment if environment.python.exists() else None


async def load_trainer_environment(context: JobContext, *extras: str) -> TrainerEnvironment:
    return await (await _builder(context, (EXTRA, *extras))).environment()


async def load_vllm_environment(context: JobContext) -> TrainerEnvironment:
    builder = await _builder(context, ())
    return await replace(builder, packages=(VLLM,), name="the environment of vLLM").environment()


async def _builder(context: JobContext, extras: Sequence[str]) -> TrainerBuilder:
    return TrainerBuilder(
        uv=uv.find_uv_bin(),
        cache_dir=context.cache_dir,
        wheel=await asyncio.to_thread(installation.build_wheel, context.cache_dir),
        environ=context.environ,
        log=context.log,
        torch=context.spec.torch,
        extras=extras,
        started=context.leftovers.add,
    )
