"""Start a sandboxed process. It waits before its first instruction until its limits are set and its network works. The
caller starts it from a thread that lives as long, because bubblewrap ends with that thread."""

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from osmosis.base.processes import kill_group, signal_group
from osmosis.errors import SandboxUnavailable
from osmosis.sandbox import namespaces
from osmosis.sandbox.confinement import build_filter, build_rules, give_folders, has_internet
from osmosis.sandbox.namespaces import namespace_program, probe
from osmosis.sandbox.network import SandboxNetwork, effective_network
from osmosis.sandbox.policy import TMP_FILES, Level, Limits, Network, Policy
from osmosis.sandbox.resource_usage import ControlGroup, DiskWatch, children, find_parent_group

INIT_PROCESS = Path(__file__).with_name("init_process.py")
SIGNAL_CODES = range(129, 129 + 64)
SETTLE_S = 5.0
TMP_PREFIX = "osmosis-tmp-"
KILLED = 128 + signal.SIGKILL


class Launch:
    """One sandboxed process: start `argv` with `fds`, call `started` and `enter`, at last `close`."""

    def __init__(self, argv: Sequence[str], policy: Policy) -> None:
        abilities = probe()
        if policy.level is Level.CONTAINER:
            raise SandboxUnavailable("a container runs commands to their end; nothing lives on in one")
        abilities.require(policy.level)
        for path in (*policy.read, *policy.write, *([policy.work] if policy.work else [])):
            if not path.exists():
                raise SandboxUnavailable(f"{path} is to be in a sandbox, and is not there")
        self.policy = policy
        self._disk = DiskWatch((*policy.write, *([policy.work] if policy.work else [])), policy.limits.disk_mb)
        self._tmp: Path | None = None
        self._tmp_watch = DiskWatch((), None)
        self.network = Network.SHARED
        self.listeners: dict[tuple[str, int], socket.socket] = {}
        self.argv: list[str] = []
        self.environ: Mapping[str, str] = policy.environ
        self.cwd = policy.cwd or policy.work
        self.fds: list[int] = []
        self._pid = 0
        self._inside = 0
        self._info = self._gate = self._life = self._first = -1
        self._namespace: SandboxNetwork | None = None
        self._router = abilities.router
        self._group = ControlGroup.make(policy.limits, find_parent_group())
        if policy.level is Level.NAMESPACES:
            self._wrap(argv)
        else:
            self._keep(argv)

    # --- made ready ---

    def _keep(self, argv: Sequence[str]) -> None:
        ends, self._life = os.pipe()
        self.fds = [ends]
        rules = "-"
        if self.policy.level is Level.LANDLOCK:
            self._tmp = tmp = Path(tempfile.mkdtemp(prefix=f"{TMP_PREFIX}{os.getpid()}-"))
            (tmp / "home").mkdir()
            give_folders(self.policy, tmp)
            rules = str(self._memory(build_rules(self.policy, tmp)))
            self._tmp_watch = DiskWatch((tmp,), self.policy.tmp_mb, most_files=TMP_FILES)
            self.environ = namespaces.variables(self.policy, str(tmp))
            self.cwd = self.cwd or tmp
            if not has_internet(self.policy):
                self.network = Network.NONE
        self.argv = [sys.executable, "-I", "-S", str(INIT_PROCESS), str(ends), rules, *argv]

    def _wrap(self, argv: Sequence[str]) -> None:
        abilities = probe()
        self.network = effective_network(self.policy.network, self._router)
        if self.network is Network.OPEN or (self.policy.listen and self.network is not Network.SHARED):
            self._namespace = SandboxNetwork()
        options: list[str] = []
        for path, text in namespaces.files(self.network).items():
            options += ["--ro-bind-data", str(self._memory(text.encode())), path]
        self._info, tell = os.pipe()
        waits, self._gate = os.pipe()
        self.fds += [tell, waits]
        options += namespaces.arguments(self.policy, self.network)
        if program := build_filter():
            options += ["--seccomp", str(self._memory(program))]
        options += ["--info-fd", str(tell), "--block-fd", str(waits)]
        named = self._memory(b"".join(option.encode("utf-8", "surrogateescape") + b"\0" for option in options))
        self.argv = [*namespace_program(abilities), "--args", str(named), "--", *argv]
        self.environ, self.cwd = {}, None

    def _memory(self, content: bytes) -> int:
        descriptor = os.memfd_create("sandbox")
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        self.fds.append(descriptor)
        return descriptor

    # --- started ---

    def started(self, pid: int) -> None:
        self._pid = pid
        self._close_fds()

    def enter(self) -> None:
        """Set limits and network, then let it run. Blocks for some milliseconds; raise `SandboxUnavailable`."""
        if self._life >= 0:
            _limit(self._pid, self.policy.limits)
            self._join_group(self._pid)
            with contextlib.suppress(BrokenPipeError):  # it is gone, and its output says why
                os.write(self._life, b"1")
            return
        info = bytearray()
        while part := os.read(self._info, 4096):
            info += part
            if part.rstrip().endswith(b"}"):
                break
        if not info:
            raise SandboxUnavailable("the sandbox ended before it began: its last words are in its output")
        self._inside = int(json.loads(info)["child-pid"])
        self._first = os.pidfd_open(self._inside)
        _limit(self._inside, self.policy.limits)
        self._join_group(self._inside)
        if self._namespace is not None:
            self._namespace.join(self._inside)
            for host, port in self.policy.listen:
                self.listeners[host, port] = self._namespace.listen(host, port)
            if self.network is Network.OPEN:
                self._namespace.open(self._router)
        os.write(self._gate, b"1")

    def _join_group(self, pid: int) -> None:
        if self._group is not None:
            try:
                self._group.add(pid)
            except OSError:
                self._group.close()
                self._group = None

    def connecting(self, family: int = socket.AF_INET) -> socket.socket:
        return self._namespace.connecting(family) if self._namespace else socket.socket(family, socket.SOCK_STREAM)

    @property
    def root(self) -> int:
        return self._inside or self._pid

    def is_disk_full(self, *, now: bool = False) -> bool:
        if self._inside and self.policy.level is Level.NAMESPACES:
            with contextlib.suppress(OSError):  # it has ended
                path = os.path.join("/proc", str(self._inside), "root", "tmp")
                files = os.statvfs(path)
                own = os.stat(path).st_dev != os.stat("/tmp").st_dev  # else it has no root of its own yet
                if own and files.f_files - files.f_ffree > TMP_FILES:
                    return True
        return self._disk.over(now=now) or self._tmp_watch.over(now=now)

    @property
    def out_of_memory(self) -> bool:
        return self._group is not None and self._group.out_of_memory

    # --- its end ---

    def ask_to_end(self) -> None:
        if self.policy.level is not Level.NAMESPACES:
            signal_group(self._pid, signal.SIGTERM)
        for pid in children(self._inside)[:1] if self._inside else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def end(self) -> None:
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        elif self._pid and self.policy.level is Level.NAMESPACES:
            # Bubblewrap's inner half ends with its outer one, except in the moment before it has asked the kernel for
            # that. Its own end is the end of all inside.
            if self._first >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._first, signal.SIGKILL)
            kill_group(self._pid)

    def settle(self) -> None:
        if self._first >= 0:
            select.select([self._first], [], [], SETTLE_S)

    def close(self) -> None:
        self.end()
        self._close_fds()
        for name in ("_info", "_gate", "_first"):
            if (fd := getattr(self, name)) >= 0:
                os.close(fd)
                setattr(self, name, -1)
        for listener in self.listeners.values():
            listener.close()
        if self._namespace is not None:
            self._namespace.close()
            self._namespace = None
        if self._tmp is not None:
            shutil.rmtree(self._tmp, ignore_errors=True)
        if self._group is not None:
            self._group.kill()
            self._group.close()
            self._group = None

    def exit_code(self, code: int) -> int:
        """Return the code as of a child process: negative when a signal ended it."""
        namespaces = self.policy.level is Level.NAMESPACES
        signalled = code in SIGNAL_CODES if namespaces else self._life < 0 and code == KILLED
        return 128 - code if signalled else code

    def _close_fds(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def _limit(pid: int, limits: Limits) -> None:
    megabyte = 1024 * 1024
    wanted_limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: limits.address_space_mb and limits.address_space_mb * megabyte,
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_FSIZE: limits.file_mb and limits.file_mb * megabyte,
        resource.RLIMIT_NOFILE: limits.open_files,
    }
    if not hasattr(resource, "prlimit"):
        return
    for kind, most in wanted_limits.items():
        if most is not None:
            with contextlib.suppress(ProcessLookupError):
                hard = resource.prlimit(pid, kind)[1]
                new = most if hard == resource.RLIM_INFINITY else min(most, hard)
                # The kernel warns at the first of the two (SIGXCPU), and kills at the second.
                resource.prlimit(pid, kind, (new, new + 1 if kind == resource.RLIMIT_CPU and new == most else new))
