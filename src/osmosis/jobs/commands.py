import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from osmosis.base.files import read_object, write_json
from osmosis.base.git import fetching_environ
from osmosis.base.processes import is_same, iterate_lines, kill_group, start_token
from osmosis.sandbox import Box, Policy, start

TAIL = 200


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. `code` is None after a timeout; `output` is the tail of both streams."""

    code: int | None
    output: str
    stdout: str

    @property
    def ok(self) -> bool:
        return self.code == 0


async def run_command(
    argv: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    timeout_s: float,
    log: Callable[[str], None] | None = None,
    started: Callable[[int], None] | None = None,
    policy: Policy | None = None,
    beside: Callable[[Box], AbstractAsyncContextManager[None]] | None = None,
) -> CommandResult:
    """Run `argv` in a sandbox (None: level 0); `log` gets each line of its output. Raise `OSError`."""
    box = await start(argv, replace(policy or Policy(), cwd=cwd, environ=environ), stderr_apart=True)
    if started:
        started(box.pid)
    tail: deque[str] = deque(maxlen=TAIL)
    stdout: list[str] = []

    async def read(stream: asyncio.StreamReader, keep: list[str] | None) -> None:
        async for text in iterate_lines(stream):
            if keep is not None:
                keep.append(text)
            tail.append(text)
            if log:
                log(text)

    code: int | None = None
    try:
        async with beside(box) if beside else nullcontext():
            reading = asyncio.gather(read(box.stdout, stdout), read(box.stderr, None), box.wait())
            code = (await asyncio.wait_for(reading, timeout_s))[2]
    except asyncio.TimeoutError:
        pass
    finally:
        # Also after a normal end: a build backend may have left a child behind.
        await box.close()
    return CommandResult(code=code, output="\n".join(tail), stdout="\n".join(stdout))


PROCESSES_FILE = "processes.json"


class Leftovers:
    def __init__(self, work_dir: Path) -> None:
        self._path = work_dir / PROCESSES_FILE
        self._known: dict[int, str] = {}

    def add(self, pid: int | None) -> None:
        if pid is not None and (started := start_token(pid)):
            self._known = {p: s for p, s in self._known.items() if is_same(p, s)}
            self._known[pid] = started
            self._write()

    def end_all(self) -> int:
        """Kill the process groups that an earlier attempt left; return how many there were."""
        ended = 0
        for pid, started in read_object(self._path).items():
            if is_same(int(pid), started):
                kill_group(int(pid))
                ended += 1
        self._known = {}
        self._write()
        return ended

    def _write(self) -> None:
        write_json(self._path, self._known)


KEEP = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "SSL_CERT_FILE"),
        *("SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "SSH_AUTH_SOCK", "XDG_CACHE_HOME"),
        *("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
    }
)
KEEP_PREFIXES = ("LC_", "UV_", "PIP_", "NIX_")
# These would point uv at another interpreter, project or target than the one the job names.
UV_STEERING = frozenset(
    {
        *("UV_PYTHON", "UV_PROJECT", "UV_PROJECT_ENVIRONMENT", "UV_WORKING_DIRECTORY", "UV_SYSTEM_PYTHON"),
        *("UV_BREAK_SYSTEM_PACKAGES", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_TARGET", "UV_PREFIX"),
        *("UV_RUN_RECURSION_DEPTH", "UV_ENV_FILE", "UV_FROZEN", "UV_LOCKED", "UV_NO_SYNC"),
    }
)


def machine_environ(environ: Mapping[str, str], *, without: Iterable[str] = ()) -> dict[str, str]:
    dropped = set(without)
    variables = {}
    for name, value in environ.items():
        if name in dropped or name in UV_STEERING:
            continue
        if name in KEEP or name.startswith(KEEP_PREFIXES) or name.lower().endswith("_proxy"):
            variables[name] = value
    return variables


def uv_environ(environ: Mapping[str, str], *, without: Iterable[str] = ()) -> dict[str, str]:
    # A download of Python hangs on machines that reach only a package index.
    return {**machine_environ(environ, without=without), "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}


def git_environ(environ: Mapping[str, str]) -> dict[str, str]:
    # A filter that the machine's user has set up would run on, and fetch from, what a commit names.
    large_files = {"filter.lfs.process": "", "filter.lfs.smudge": "cat", "filter.lfs.required": "false"}
    variables = fetching_environ(environ, settings={"advice.detachedHead": "false", **large_files})
    return {**variables, "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=20"}


def rollout_environ(
    environ: Mapping[str, str], *, env: Mapping[str, str], secrets: Mapping[str, str], venv: str | None = None
) -> dict[str, str]:
    machine = machine_environ(environ)
    variables = {name: value for name, value in machine.items() if not name.startswith(("UV_", "PIP_"))}
    if venv:
        variables["VIRTUAL_ENV"] = venv
        variables["PATH"] = f"{venv}/bin:{variables['PATH']}" if variables.get("PATH") else f"{venv}/bin"
    return {**variables, **env, **secrets}
