"""The rollout's own virtual environment, made by `uv` from what the rollout declares, cached by content.

osmosis itself is never resolved from an index here: the wheel of the running installation is offered to uv and
pinned, unless the rollout asks for another generation. An environment is built in a temporary folder under a lock
and renamed when it is complete. uv runs in the sandbox of the building (`build_sandbox`), because it runs the build
backends of the rollout and of what it depends on; so what lies in `env/` is somebody else's: nothing here writes to it
or follows a link of it afterwards. Environments belong to a workspace; those not used for two weeks go.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from osmosis.base.environments import MARKER, prune
from osmosis.base.locks import locked_async
from osmosis.base.wheel import DISTRIBUTION, Wheel

from .build_sandbox import BuildSandbox
from .commands import CommandResult, run_command
from .environ import uv_environ
from .job import JobLog
from .project import Generation, RolloutProject
from .uv import Interpreter, choose_interpreter, explain, no_network

STEP = "uv"
INSTALL_TIMEOUT_S = 1200.0
LAYOUT = "2"
ENV = "env"
"""The virtual environment in an environment's folder; beside it lies what only the job writes."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A finished environment. `packages` is what is installed: name -> version."""

    folder: Path
    """The virtual environment."""
    packages: Mapping[str, str]
    python_version: str
    interpreter: Path
    """The Python of this machine that it was made with."""
    project: Path | None = None
    """Where the rollout project itself is installed, for PYTHONPATH; None when it is not installable."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def osmosis_version(self) -> str | None:
        """Which osmosis-ai the environment has."""
        return self.packages.get(DISTRIBUTION)


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes environments: where uv is, where they are cached, what uv may see and reach."""

    uv: str
    cache_dir: Path
    """Of the machine: wheels, which the workspaces share, and a folder for each of these."""
    wheel: Wheel
    environ: Mapping[str, str]
    log: JobLog
    sandbox: BuildSandbox = field(default_factory=BuildSandbox)
    workspace: str = ""
    extras: frozenset[str] = frozenset()
    """Of osmosis itself, beyond what the rollout asks for."""
    started: Callable[[int], None] | None = None
    """Told each process group that is started, so that a killed job's successor can end it."""
    timeout_s: float = INSTALL_TIMEOUT_S

    async def environment(self, project: RolloutProject, *, commit_sha: str, install_to: Path) -> Environment:
        """The environment of `project`: a cached one, or built now. Raises `JobFailed`.

        An installable project is installed itself, without dependencies, into `install_to`: its code changes with
        every commit, its dependencies rarely do.
        """
        environ = uv_environ(self.environ)
        interpreter = await choose_interpreter(
            project.requires_python, where=project.where, uv=self.uv, environ=environ, cwd=self.cache_dir
        )
        extras = self._extras(project)
        key = environment_key(project, self.wheel, interpreter, commit_sha, extras)
        folder = self._environments / key
        lock = folder.parent / ".locks" / key
        waiting = self.log.stream(STEP)
        async with locked_async(lock, waiting=lambda: waiting("waiting: another job is creating the same environment")):
            made = _finished(folder)
            if made:
                self.log.write(STEP, f"using the environment {key} from the cache (Python {made.python_version})")
            else:
                made = await self._make(project, interpreter, folder, environ, extras)
        if not project.installable:
            return made
        await self._install_project(project, made, install_to, environ)
        return replace(made, project=install_to)

    @property
    def _environments(self) -> Path:
        return self.cache_dir / "environments" / (self.workspace or "default")

    def _extras(self, project: RolloutProject) -> tuple[str, ...]:
        """Extras of osmosis that are installed although the rollout does not name them."""
        if project.generation(self.wheel.base_version) == "theirs":
            return ()
        if "full" in self.extras or not (reason := project.judge_reason()):
            return tuple(sorted(self.extras))
        self.log.write(STEP, f"also installing LiteLLM (osmosis-ai[rubric]): {project.label}: {reason}")
        return tuple(sorted({*self.extras, "rubric"}))

    async def _make(
        self,
        project: RolloutProject,
        interpreter: Interpreter,
        folder: Path,
        environ: Mapping[str, str],
        extras: tuple[str, ...],
    ) -> Environment:
        self.log.write(
            STEP, f"creating the environment {folder.name} from {project.where} (Python {interpreter.version})"
        )
        # A name of its own: a killed job may have left a uv behind that goes on writing where it was told to.
        making = folder.parent / f".making-{folder.name}-{secrets.token_hex(4)}"
        await asyncio.to_thread(_remove, folder, *folder.parent.glob(f".making-{folder.name}-*"))
        env = making / ENV
        env.mkdir(parents=True)
        uv = self._in_sandbox(project, environ, interpreter.path, read=(making,), write=(env,))
        try:
            await uv(
                "venv", "--quiet", "--relocatable", "--no-project", "--allow-existing", *_python(interpreter), str(env)
            )
            await uv(*await self._install_arguments(project, making, uv, extras))
            frozen = await uv("pip", "freeze", "--python", str(env), quiet=True)
            mark = {
                "python": interpreter.version,
                "interpreter": str(interpreter.path),
                "packages": _packages(frozen.stdout.splitlines(), self.wheel),
            }
            (making / MARKER).write_text(json.dumps(mark, indent=1), encoding="utf-8")
            making.rename(folder)
        finally:
            await asyncio.to_thread(_remove, making)
        made = _finished(folder)
        assert made is not None
        self.log.write(STEP, f"the environment has {len(made.packages)} packages")
        if gone := await asyncio.to_thread(prune, self.cache_dir):
            self.log.write(STEP, f"removed {len(gone)} environments and wheels unused for two weeks")
        return made

    async def _install_arguments(
        self, project: RolloutProject, making: Path, uv: RunUv, extras: tuple[str, ...]
    ) -> tuple[str, ...]:
        arguments = ["pip", "install", *self.sandbox.compiles, "--python", str(making / ENV)]
        ours = project.generation(self.wheel.base_version) != "theirs"
        if project.requirements_file is not None:
            arguments += ["--requirements", str(project.requirements_file)]
        if project.lock is not None:
            locked = making / "locked.txt"
            locked.write_text(await self._locked(uv, keep_osmosis=not ours), encoding="utf-8")
            arguments += ["--constraints", str(locked)]
        if ours:
            pin = making / "pinned.txt"
            pin.write_text(f"{DISTRIBUTION}=={self.wheel.version}\n", encoding="utf-8")
            arguments += ["--find-links", str(self.wheel.folder), "--constraints", str(pin)]
            named = f"[{','.join(extras)}]" if extras else ""
            arguments += [f"{DISTRIBUTION}{named}=={self.wheel.version}"]
            if project.own_sources:
                arguments += ["--no-sources-package", DISTRIBUTION]
        return tuple(arguments)

    async def _locked(self, uv: RunUv, *, keep_osmosis: bool) -> str:
        """uv.lock as constraints: what it pins is honoured, what pyproject.toml added since is still installed."""
        leave_out = ["--no-emit-project", "--no-emit-workspace", "--no-emit-local"]
        if not keep_osmosis:
            leave_out += ["--no-emit-package", DISTRIBUTION]
        exported = await uv("export", "--frozen", "--no-header", "--no-annotate", "--no-dev", *leave_out, quiet=True)
        return exported.stdout + "\n"

    async def _install_project(
        self, project: RolloutProject, made: Environment, install_to: Path, environ: Mapping[str, str]
    ) -> None:
        self.log.write(STEP, f"installing {project.label} itself")
        await asyncio.to_thread(_remove, install_to)
        install_to.mkdir(parents=True)
        uv = self._in_sandbox(project, environ, made.interpreter, read=(made.folder,), write=(install_to,))
        target = ("--python", str(made.folder), "--target", str(install_to))
        await uv("pip", "install", "--no-deps", *self.sandbox.compiles, *target, str(project.folder))

    def _in_sandbox(
        self,
        project: RolloutProject,
        environ: Mapping[str, str],
        python: Path,
        *,
        read: tuple[Path, ...],
        write: tuple[Path, ...],
    ) -> RunUv:
        """uv for one environment, in the rollout's folder, whose `[tool.uv]` it then honours."""
        folders = self.sandbox.folders(self.uv, self.wheel.folder, python, environ)
        policy = self.sandbox.policy(read=(*folders, *read), write=write)
        known = self.sandbox.environ(environ)

        async def uv(*arguments: str, quiet: bool = False) -> CommandResult:
            async def run(*extra: str) -> CommandResult:
                return await run_command(
                    (self.uv, *arguments, *extra),
                    cwd=project.folder,
                    environ=known,
                    timeout_s=self.timeout_s,
                    log=None if quiet else self.log.stream(STEP, "debug"),
                    started=self.started,
                    policy=policy,
                    beside=self.sandbox.proxied,
                )

            return await self._checked(run, project, arguments)

        return uv

    async def _checked(
        self, run: Callable[..., Awaitable[CommandResult]], project: RolloutProject, arguments: tuple[str, ...]
    ) -> CommandResult:
        """Runs it, once more offline without a network. Raises `JobFailed` when it did not succeed."""
        done = await run()
        if not done.ok and done.code is not None and no_network(done.output):
            self.log.write(STEP, "the package index does not answer: trying uv's cache", "warning")
            offline = await run("--offline")
            done = offline if offline.ok else done
        if not done.ok:
            raise explain(done, project, arguments, timeout_s=self.timeout_s)
        return done


class RunUv(Protocol):
    """uv with these arguments. Raises `JobFailed` when it does not succeed."""

    async def __call__(self, *arguments: str, quiet: bool = False) -> CommandResult: ...


def _python(interpreter: Interpreter) -> tuple[str, str]:
    return ("--python", str(interpreter.path))


def environment_key(
    project: RolloutProject, wheel: Wheel, interpreter: Interpreter, commit_sha: str, extras: tuple[str, ...] = ()
) -> str:
    """What an environment depends on, as 20 hex digits: two rollouts that agree in it share one."""
    generation: Generation = project.generation(wheel.base_version)
    digest = hashlib.sha256(LAYOUT.encode())
    parts = [generation, wheel.version if generation != "theirs" else "", str(interpreter.path), interpreter.version]
    parts.append(",".join(extras))
    declared = (project.folder / "pyproject.toml", project.folder / "uv.toml")
    for file in (project.requirements_file, *declared, project.lock):
        parts.append(file.read_text(encoding="utf-8", errors="replace") if file and file.is_file() else "")
    if project.local_sources:
        parts += [str(project.folder), commit_sha]
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:20]


def _finished(folder: Path) -> Environment | None:
    """The environment in `folder` when it is complete and its interpreter is still there."""
    try:
        mark = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    made = Environment(folder / ENV, mark["packages"], mark["python"], Path(mark["interpreter"]))
    if not made.python.exists():
        return None
    with suppress(OSError):
        os.utime(folder / MARKER)
    return made


def _packages(lines: Iterable[str], wheel: Wheel) -> dict[str, str]:
    found = {}
    for line in lines:
        name, separator, version = line.partition("==")
        if separator:
            found[name.strip().lower()] = version.strip()
        elif " @ " in line:
            name, _, url = line.partition(" @ ")
            found[name.strip().lower()] = wheel.version if wheel.path.as_uri() in url else url.strip()
    return found


def _remove(*folders: Path) -> None:
    """As far as it goes: what somebody still writes to is taken by the next to come."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
