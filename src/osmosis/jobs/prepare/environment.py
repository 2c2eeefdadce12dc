import asyncio
import hashlib
import json
import platform
import re
import secrets
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from osmosis.base.installation import DISTRIBUTION, MARKER, Wheel, prune_environments, read_marker, remove_folders
from osmosis.base.locks import locked_async
from osmosis.base.safe_open import folder_at, walk
from osmosis.jobs.commands import CommandResult, run_command, uv_environ
from osmosis.jobs.context import TAIL_LINES, JobFailed, JobLog, setup_failure
from osmosis.jobs.prepare.project import MOST_ENTRIES, Generation, RolloutProject, read_text
from osmosis.jobs.sandboxes import BuildSandbox
from osmosis.records.run.rollout import Category
from osmosis.sandbox import Level

STEP = "uv"
RunUv = Callable[..., Awaitable[CommandResult]]
INSTALL_TIMEOUT_S = 1200.0
LAYOUT = "3"
ENV, COPY = "env", "project"
FIND_TIMEOUT_S = 60.0
VERSION_OF = "import platform; print(platform.python_version())"
_NETWORK = re.compile(
    r"error sending request|dns error|failed to lookup address|connection refused|tcp connect error|"
    r"client error \(connect\)|network is unreachable|operation timed out|unknownissuer|could not connect",
    re.IGNORECASE,
)
_MARKS = re.compile(r"^\s*(?:[×✗╰├│─▶>-]+\s*)*(?:error|cause|caused by)?\s*:?\s*", re.IGNORECASE)
MAX_REASON = 700


@dataclass(frozen=True, slots=True)
class Interpreter:
    path: Path
    version: str


async def choose_interpreter(
    requires: SpecifierSet, *, where: str, uv: str, environ: Mapping[str, str], cwd: Path
) -> Interpreter:
    """Return the running Python if `requires` allows it, else one on this machine. Raise `JobFailed`."""
    running = platform.python_version()
    if requires.contains(running, prereleases=True):
        # Not this process's virtual environment: what is made with it could read that.
        own: str = getattr(sys, "_base_executable", sys.executable)
        return Interpreter(Path(own).resolve(), running)
    find = (uv, "python", "find", "--no-project", "--system", str(requires))
    named = await run_command(find, cwd=cwd, environ=environ, timeout_s=FIND_TIMEOUT_S)
    on_path = [Path(line) for line in named.stdout.splitlines()[-1:]] if named.ok else []
    # Version managers put Pythons into sibling folders.
    pythons = []
    for folder in Path(sys.base_prefix).parent.iterdir():
        numbers = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", folder.name)
        python = folder / "bin" / "python3"
        if numbers and python.exists():
            pythons.append((tuple(int(n or 0) for n in numbers.groups()), python))
    for path in (*on_path, *[python for _, python in sorted(pythons)]):
        version = await run_command(
            (str(path), "-I", "-c", VERSION_OF), cwd=cwd, environ=environ, timeout_s=FIND_TIMEOUT_S
        )
        if version.ok and requires.contains(version.stdout.strip(), prereleases=True):
            return Interpreter(path, version.stdout.strip())
    raise setup_failure(
        f"{where}: [project].requires-python is {str(requires)!r}: this machine has Python {running}, and none "
        "that matches",
        fix="install a matching Python on the platform's machine, or widen requires-python",
        category=Category.UNKNOWN,
        tail=named.output,
    )


def is_network_failure(output: str) -> bool:
    return bool(_NETWORK.search(output))


def describe_failure(
    done: CommandResult, project: RolloutProject, arguments: Sequence[str], *, timeout_s: float
) -> JobFailed:
    tail = "\n".join(done.output.splitlines()[-TAIL_LINES:])
    if done.code is None:
        message = f"{project.where}: the dependencies were not installed within {timeout_s:.0f} s"
        fix = "remove dependencies, or pin versions so that uv need not search; a uv.lock helps most"
        return setup_failure(message, fix=fix, category=Category.TIMEOUT, tail=tail)
    if is_network_failure(done.output):
        return setup_failure(
            f"{project.where}: the package index cannot be reached, and uv's cache does not have everything: "
            f"{explain_output(done.output)}",
            fix="check the network (or the proxy and UV_* settings) of the machine the job runs on, then submit again",
            category=Category.CONNECTION,
            tail=tail,
        )
    if arguments and arguments[0] == "venv":
        message = f"{project.label}: the virtual environment cannot be created: {explain_output(done.output)}"
        return setup_failure(message, category=Category.UNKNOWN, tail=tail)
    if "--no-deps" in arguments:
        fix = f"try: osmosis check {project.label.rpartition('/')[2]}; or remove [build-system] if it is no package"
        message = f"{project.label}: the project itself cannot be built: {explain_output(done.output)}"
        return setup_failure(message, fix=fix, tail=tail)
    lowered = done.output.lower()
    culprits = []
    for requirement in project.dependencies:
        pattern = rf"(?<![\w.-]){re.escape(canonicalize_name(requirement.name))}(?![\w-])"
        if re.search(pattern, lowered):
            culprits.append(str(requirement))
    named = f" ({', '.join(culprits)})" if culprits else ""
    message = f"{project.where}: a dependency cannot be installed{named}: {explain_output(done.output)}"
    fix = f"fix the dependency in {project.where}, commit, push and submit again"
    return setup_failure(message, fix=fix, tail=tail)


def explain_output(output: str) -> str:
    lines = output.splitlines()
    causes = [i for i, line in enumerate(lines) if re.search(r"cause[d by]*:|╰─▶|^\s*×", line, re.IGNORECASE)]
    errors = [i for i, line in enumerate(lines) if line.lstrip().lower().startswith("error:")]
    start = (causes or errors or [max(len(lines) - 3, 0)])[-1 if not causes else 0]
    parts = [_MARKS.sub("", line).strip() for line in lines[start : start + 8] if not line.startswith("hint:")]
    text = " ".join(part for part in parts if part)
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "..."


@dataclass(frozen=True, slots=True)
class Environment:
    folder: Path
    packages: Mapping[str, str]
    python_version: str
    interpreter: Path
    project: Path | None = None
    """The folder of the installed rollout project, for PYTHONPATH; None when it is not installable."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def osmosis_version(self) -> str | None:
        return self.packages.get(DISTRIBUTION)


@dataclass(frozen=True, slots=True)
class Builder:
    uv: str
    cache_dir: Path
    wheel: Wheel
    environ: Mapping[str, str]
    log: JobLog
    sandbox: BuildSandbox = field(default_factory=BuildSandbox)
    owner: str = ""  # Whose environments these are: a person of a workspace
    extras: frozenset[str] = frozenset()
    started: Callable[[int], None] | None = None
    timeout_s: float = INSTALL_TIMEOUT_S

    async def environment(self, project: RolloutProject, *, commit_sha: str, install_to: Path) -> Environment:
        environ = uv_environ(self.environ)
        interpreter = await choose_interpreter(
            project.requires_python, where=project.where, uv=self.uv, environ=environ, cwd=self.cache_dir
        )
        extras = self._extras(project)
        key = environment_key(project, self.wheel, interpreter, commit_sha, extras)
        folder = self.cache_dir / "environments" / (self.owner or "default") / key
        lock = folder.parent / ".locks" / key
        waiting = self.log.stream(STEP)
        async with locked_async(lock, waiting=lambda: waiting("waiting: another job is creating the same environment")):
            finished = _finished(folder)
            if finished:
                self.log.write(STEP, f"using the environment {key} from the cache (Python {finished.python_version})")
            else:
                finished = await self._make(project, interpreter, folder, environ, extras)
        if not project.installable:
            return finished
        await self._install_project(project, finished, install_to, environ)
        return replace(finished, project=install_to)

    def _extras(self, project: RolloutProject) -> tuple[str, ...]:
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
        await asyncio.to_thread(remove_folders, folder, *folder.parent.glob(f".making-{folder.name}-*"))
        env = making / ENV
        env.mkdir(parents=True)
        copied = project.installable or project.local_sources
        project, names = await asyncio.to_thread(self._copy, project, making / COPY) if copied else (project, {})
        uv = self._in_sandbox(project, environ, interpreter.path, read=(making,), write=(*names, env), names=names)
        try:
            options = ("--quiet", "--relocatable", "--no-project", "--allow-existing")
            await uv("venv", *options, "--python", str(interpreter.path), str(env))
            await uv(*await self._install_arguments(project, making, uv, extras))
            frozen = await uv("pip", "freeze", "--python", str(env), quiet=True)
            packages = {}
            for line in frozen.stdout.splitlines():
                name, separator, version = line.partition("==")
                if separator:
                    packages[name.strip().lower()] = version.strip()
                elif " @ " in line:
                    name, _, url = line.partition(" @ ")
                    packages[name.strip().lower()] = (
                        self.wheel.version if self.wheel.path.as_uri() in url else url.strip()
                    )
            mark = {"python": interpreter.version, "interpreter": str(interpreter.path), "packages": packages}
            await asyncio.to_thread(remove_folders, making / COPY)
            (making / MARKER).write_text(json.dumps(mark, indent=1), encoding="utf-8")
            making.rename(folder)
        finally:
            await asyncio.to_thread(remove_folders, making)
        finished = _finished(folder)
        assert finished is not None
        self.log.write(STEP, f"the environment has {len(finished.packages)} packages")
        if pruned := await asyncio.to_thread(prune_environments, self.cache_dir):
            self.log.write(STEP, f"removed {len(pruned)} environments and wheels unused for two weeks")
        return finished

    async def _install_arguments(
        self, project: RolloutProject, making: Path, uv: RunUv, extras: tuple[str, ...]
    ) -> tuple[str, ...]:
        arguments = ["pip", "install", *self.sandbox.compiles, "--python", str(making / ENV)]
        ours = project.generation(self.wheel.base_version) != "theirs"
        if project.requirements_file is not None:
            arguments += ["--requirements", str(project.requirements_file)]
        if project.lock is not None:
            locked = making / "locked.txt"
            leave_out = ["--no-emit-project", "--no-emit-workspace", "--no-emit-local"]
            if ours:
                leave_out += ["--no-emit-package", DISTRIBUTION]
            bare = ("--no-header", "--no-annotate", "--no-dev")
            exported = await uv("export", "--frozen", *bare, *leave_out, quiet=True)
            locked.write_text(exported.stdout + "\n", encoding="utf-8")
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

    async def _install_project(
        self, project: RolloutProject, environment: Environment, install_to: Path, environ: Mapping[str, str]
    ) -> None:
        self.log.write(STEP, f"installing {project.label} itself")
        copy = install_to.with_name(f"{install_to.name}-{COPY}")
        await asyncio.to_thread(remove_folders, install_to, copy)
        install_to.mkdir(parents=True)
        project, names = await asyncio.to_thread(self._copy, project, copy)
        read, write = (environment.folder,), (install_to, *names)
        uv = self._in_sandbox(project, environ, environment.interpreter, read=read, write=write, names=names)
        target = ("--python", str(environment.folder), "--target", str(install_to))
        try:
            await uv("pip", "install", "--no-deps", *self.sandbox.compiles, *target, str(project.folder))
        finally:
            await asyncio.to_thread(remove_folders, copy)

    def _copy(self, project: RolloutProject, to: Path) -> tuple[RolloutProject, dict[Path, Path]]:
        if self.sandbox.level is Level.NONE and project.local_sources:
            return project, {}  # whose sources may stand anywhere beside it
        root = self.sandbox.source if project.local_sources and self.sandbox.source else project.folder
        shutil.copytree(root, to, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "node_modules"))
        if self.sandbox.level >= Level.NAMESPACES:
            return project, {to: root}
        folder = to / project.folder.relative_to(root)
        file = project.requirements_file and folder / project.requirements_file.name
        lock = project.lock and folder / project.lock.name
        return replace(project, folder=folder, requirements_file=file, lock=lock), {to: to}

    def _in_sandbox(
        self,
        project: RolloutProject,
        environ: Mapping[str, str],
        python: Path,
        *,
        read: tuple[Path, ...],
        write: tuple[Path, ...],
        names: Mapping[Path, Path],
    ) -> RunUv:
        folders = self.sandbox.folders(self.uv, self.wheel.folder, python, environ)
        policy = self.sandbox.policy(read=(*folders, *read), write=write, names=names)
        variables = self.sandbox.environ(environ)

        async def uv(*arguments: str, quiet: bool = False) -> CommandResult:
            async def run(*extra: str) -> CommandResult:
                return await run_command(
                    (self.uv, *arguments, *extra),
                    cwd=project.folder,
                    environ=variables,
                    timeout_s=self.timeout_s,
                    log=None if quiet else self.log.stream(STEP, "debug"),
                    started=self.started,
                    policy=policy,
                    beside=self.sandbox.proxied,
                )

            done = await run()
            if not done.ok and done.code is not None and is_network_failure(done.output):
                self.log.write(STEP, "the package index does not answer: trying uv's cache", "warning")
                offline = await run("--offline")
                done = offline if offline.ok else done
            if not done.ok:
                raise describe_failure(done, project, arguments, timeout_s=self.timeout_s)
            return done

        return uv


def environment_key(
    project: RolloutProject, wheel: Wheel, interpreter: Interpreter, commit_sha: str, extras: tuple[str, ...] = ()
) -> str:
    """Return 20 hex digits; rollouts with the same key share an environment."""
    generation: Generation = project.generation(wheel.base_version)
    digest = hashlib.sha256(LAYOUT.encode())
    parts = [generation, wheel.version if generation != "theirs" else "", str(interpreter.path), interpreter.version]
    parts.append(",".join(extras))
    for file in (project.requirements_file, project.folder / "pyproject.toml", project.lock):
        parts.append((read_text(project.folder, file.name, project.label) or "") if file else "")
    if project.local_sources:
        parts += [str(project.folder), commit_sha or _digest(project.folder)]
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:20]


def _digest(folder: Path) -> str:
    with folder_at(folder, ()) as opened:
        entries = [f"{path} {about.st_size} {about.st_mtime_ns}" for path, about in walk(opened, MOST_ENTRIES)]
    return hashlib.sha256("\n".join(entries).encode("utf-8", "surrogateescape")).hexdigest()


def _finished(folder: Path) -> Environment | None:
    if (marker := read_marker(folder)) is None:
        return None
    environment = Environment(folder / ENV, marker["packages"], marker["python"], Path(marker["interpreter"]))
    return environment if environment.python.exists() else None
