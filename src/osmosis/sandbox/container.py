"""Run a command in a container: the only module with arguments of podman and docker."""

import functools
import os
import re
import resource
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.processes import is_same, kill_group, start_token
from osmosis.errors import SandboxUnavailable
from osmosis.sandbox.policy import WORK, Network, Policy
from osmosis.sandbox.resource_usage import DiskWatch

ENGINES = ("podman", "docker")
ANSWER_S = 20.0
OWNER = "osmosis.owner"
USER = 1000
ENGINE_FAILED = 125
NOT_STARTED = (125, 126, 127)  # Exit codes of an engine when a container did not start; also of commands, once one did
MOST_OPEN_FILES = 4096
MOST_THREADS = 4096
SIGNAL_CODES = range(129, 129 + 64)
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*")
INSTALL = "install podman (Debian, Ubuntu: apt-get install podman), or docker and its daemon"


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    path: str
    name: str

    def ask(self, *arguments: str, timeout_s: float = ANSWER_S) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self.path, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            return subprocess.CompletedProcess([], ENGINE_FAILED, "", str(problem))

    def require(self, image: str) -> None:
        if not _IMAGE.fullmatch(image):
            raise SandboxUnavailable(f"{image!r} is not the name of an image", hint="such as python:3.12-slim")
        if self.ask("image", "inspect", "--format", "{{.Id}}", image).returncode:
            message = f"the image {image} is not on this machine: nothing is downloaded when a rollout runs"
            raise SandboxUnavailable(message, hint=f"{self.name} pull {image}")


@functools.cache
def find_engine() -> ContainerEngine | None:
    for name in ENGINES:
        if path := shutil.which(name):
            candidate = ContainerEngine(path, name)
            if candidate.ask("ps", "--quiet").returncode == 0:
                return candidate
    return None


def get_engine() -> ContainerEngine:
    if (answering := find_engine()) is None:
        installed = [name for name in ENGINES if shutil.which(name)]
        reason = (
            f"{installed[0]} is installed, and does not answer"
            if installed
            else "neither podman nor docker is installed"
        )
        raise SandboxUnavailable(f"no container can be made on this machine: {reason}", hint=INSTALL)
    return answering


def arguments(
    argv: Sequence[str], policy: Policy, container_engine: ContainerEngine, name: str, environ_file: str
) -> Iterator[str]:
    limits = policy.limits
    yield from ("run", "--interactive", "--name", name, "--pull", "never")
    yield from ("--label", f"{OWNER}={os.getpid()}/{start_token(os.getpid())}", "--hostname", "sandbox")
    yield from ("--network", "none", "--read-only", "--cap-drop", "ALL", "--log-driver", "none")
    yield from ("--security-opt", "no-new-privileges", "--security-opt", "label=disable")
    if os.geteuid() != 0 and container_engine.name == "podman":
        yield from ("--userns", "keep-id")
    yield from ("--user", f"{os.geteuid()}:{os.getegid()}" if os.geteuid() else f"{USER}:{USER}")
    yield from ("--tmpfs", f"/tmp:rw,exec,mode=1777,size={policy.tmp_mb}m")
    for folder in policy.read:
        yield from ("--mount", _mount(folder, str(folder), ",readonly"))
    for folder in policy.write:
        yield from ("--mount", _mount(folder, str(folder)))
    if policy.work is not None:
        yield from ("--mount", _mount(policy.work, WORK))
    yield from ("--workdir", str(policy.cwd or (WORK if policy.work else "/tmp")), "--env-file", environ_file)
    if limits.memory_mb is not None:
        yield from ("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m")
    if limits.cpus is not None:
        yield from ("--cpus", f"{limits.cpus:g}")
    if limits.processes is not None:
        yield from ("--pids-limit", str(limits.processes))
    ulimits = {"cpu": limits.cpu_s, "fsize": limits.file_mb and limits.file_mb * 1024 * 1024, "core": 0}
    # An engine's own defaults may be more than this process can give on.
    own_limits = {"nofile": limits.open_files or _own_limit(resource.RLIMIT_NOFILE, MOST_OPEN_FILES)}
    own_limits["nproc"] = _own_limit(resource.RLIMIT_NPROC, MOST_THREADS)
    for kind, most in {**ulimits, **own_limits}.items():
        if most is not None:
            yield from ("--ulimit", f"{kind}={most}:{most}")
    # A program that is not there is then the command's failure, not the engine's.
    yield from ("--entrypoint", "/bin/sh", policy.image, "-c", 'exec "$@"', "sh", *argv)


def _own_limit(kind: int, most: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)


def _mount(source: Path, target: str, options: str = "") -> str:
    if "," in f"{source}{target}" or '"' in f"{source}{target}":
        raise SandboxUnavailable(f"{source} cannot be in a container: its name has a comma or a quotation mark")
    return f"type=bind,source={source},target={target}{options}"


class ContainerLaunch:
    def __init__(self, argv: Sequence[str], policy: Policy) -> None:
        if policy.network is not Network.NONE or policy.listen:
            message = "a container has no network here: an engine's own reaches this machine and private addresses"
            hint = "use bubblewrap for what needs a network, or build an image that has what is needed"
            raise SandboxUnavailable(message, hint=hint)
        self.policy = policy
        self._disk = DiskWatch((*policy.write, *([policy.work] if policy.work else [])), policy.limits.disk_mb)
        self.out_of_memory = False
        self.root = 0
        self._engine = get_engine()
        self._name = f"osmosis-{secrets.token_hex(6)}"
        self._environ = os.memfd_create("environ")
        os.write(self._environ, _environ_file(policy.environ))
        os.lseek(self._environ, 0, os.SEEK_SET)
        self.fds = [self._environ]
        self.argv = [self._engine.path, *arguments(argv, policy, self._engine, self._name, f"/dev/fd/{self._environ}")]
        self.environ: Mapping[str, str] = os.environ  # the engine's own settings are in the caller's
        self.cwd: Path | None = None
        self._ended = False
        self._code = 0
        self._client = 0

    def started(self, pid: int) -> None:
        self._client = pid

    def enter(self) -> None: ...

    def is_disk_full(self, *, now: bool = False) -> bool:
        return self._disk.over(now=now)

    def end(self) -> None:
        if self._client and not self._ended:
            self._ended = True
            self._engine.ask("kill", "--signal", "KILL", self._name)
            kill_group(self._client)

    def settle(self) -> None:
        self._ended = True
        inspection = self._engine.ask("inspect", "--format", "{{.State.OOMKilled}} {{.State.Status}}", self._name)
        killed, _, status = inspection.stdout.strip().partition(" ")
        self.out_of_memory = killed == "true"
        if self._code in NOT_STARTED and (inspection.returncode or status in ("created", "configured", "initialized")):
            raise SandboxUnavailable(f"{self._engine.name} cannot run a container of {self.policy.image}")

    def exit_code(self, code: int) -> int:
        self._code = code
        return 128 - code if code in SIGNAL_CODES else code

    def close(self) -> None:
        if self._environ >= 0:
            os.close(self._environ)
            self._environ = -1
            self._engine.ask("rm", "--force", "--volumes", self._name)


def _environ_file(environ: Mapping[str, str]) -> bytes:
    if wrong := next((name for name, value in environ.items() if "\n" in f"{name}{value}"), None):
        raise SandboxUnavailable(f"the variable {wrong} has several lines, which a container cannot be given")
    return "".join(f"{name}={value}\n" for name, value in environ.items()).encode("utf-8", "surrogateescape")


def remove_leftovers() -> int:
    answering = find_engine()
    if answering is None:
        return 0
    listed = answering.ask("ps", "--all", "--filter", f"label={OWNER}", "--format", "{{.Names}}").stdout.split()
    removed = 0
    for name in listed:
        label = answering.ask("inspect", "--format", f'{{{{index .Config.Labels "{OWNER}"}}}}', name).stdout.strip()
        pid, _, token = label.partition("/")
        if pid.isdigit() and not is_same(int(pid), token):
            answering.ask("rm", "--force", "--volumes", name)
            removed += 1
    return removed
