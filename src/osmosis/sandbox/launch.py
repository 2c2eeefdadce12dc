"""How a sandboxed process is started, whoever waits for it: made ready, started by the caller, then let go.

A sandbox waits before its first instruction until its limits are set and its network is there. The caller starts the
process itself, from a thread that lives as long: bubblewrap ends with the thread that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from osmosis.base.processes import kill_group, signal_group
from osmosis.errors import SandboxUnavailable

from . import bubblewrap, cgroup
from .network import SandboxNetwork, wanted
from .policy import Level, Limits, Network, Policy
from .probe import probe
from .usage import DiskWatch, children

KEEPER = Path(__file__).with_name("keeper.py")
SIGNAL_CODES = range(129, 129 + 64)
SETTLE_S = 5.0
KILLED = 128 + signal.SIGKILL


class Launch:
    """One sandboxed process, from its command line to its end. Order: start `argv`, `started`, `enter`, then `close`.

    `argv`, `environ`, `cwd` and `fds` are for the call that starts it; nothing else may be handed to the process.
    """

    def __init__(self, argv: Sequence[str], policy: Policy) -> None:
        abilities = probe()
        if policy.level is Level.CONTAINER:
            raise SandboxUnavailable("a container runs commands to their end; nothing lives on in one")
        abilities.require(policy.level)
        for path in (*policy.read, *policy.write, *([policy.work] if policy.work else [])):
            if not path.exists():
                raise SandboxUnavailable(f"{path} is to be in a sandbox, and is not there")
        self.policy = policy
        self.disk = DiskWatch((*policy.write, *([policy.work] if policy.work else [])), policy.limits.disk_mb)
        self.network = Network.SHARED
        """What the process really has."""
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
        self._group = cgroup.ControlGroup.make(policy.limits, cgroup.parent())
        if policy.level is Level.NONE:
            self._keep(argv)
        else:
            self._wrap(argv)

    # --- made ready ---

    def _keep(self, argv: Sequence[str]) -> None:
        ends, self._life = os.pipe()
        self.fds = [ends]
        self.argv = [sys.executable, "-I", "-S", str(KEEPER), str(ends), *argv]

    def _wrap(self, argv: Sequence[str]) -> None:
        abilities = probe()
        self.network = wanted(self.policy.network, self._router)
        if self.network is Network.OPEN or (self.policy.listen and self.network is not Network.SHARED):
            self._namespace = SandboxNetwork()
        options: list[str] = []
        for path, text in bubblewrap.files(self.network).items():
            options += ["--ro-bind-data", str(self._memory(text.encode())), path]
        self._info, tell = os.pipe()
        waits, self._gate = os.pipe()
        self.fds += [tell, waits]
        options += bubblewrap.arguments(self.policy, abilities, self.network)
        options += ["--info-fd", str(tell), "--block-fd", str(waits)]
        named = self._memory(b"".join(option.encode("utf-8", "surrogateescape") + b"\0" for option in options))
        self.argv = [abilities.bubblewrap, "--args", str(named), "--", *argv]
        self.environ, self.cwd = {}, None

    def _memory(self, content: bytes) -> int:
        """A descriptor from which `content` can be read, which the process inherits."""
        made = os.memfd_create("sandbox")
        os.write(made, content)
        os.lseek(made, 0, os.SEEK_SET)
        self.fds.append(made)
        return made

    # --- started ---

    def started(self, pid: int) -> None:
        """The process is there: what only it needs is closed here."""
        self._pid = pid
        self._close_fds()

    def enter(self) -> None:
        """Sets limits and network, then lets it run. Blocks for some milliseconds. Raises `SandboxUnavailable`."""
        if self.policy.level is Level.NONE:
            _limit(self._pid, self.policy.limits)
            self._join_group(self._pid)
            with contextlib.suppress(BrokenPipeError):  # it is gone, and its output says why
                os.write(self._life, b"1")
            return
        said = bytearray()
        while part := os.read(self._info, 4096):
            said += part
            if part.rstrip().endswith(b"}"):
                break
        if not said:
            raise SandboxUnavailable("the sandbox ended before it began: its last words are in its output")
        self._inside = int(json.loads(said)["child-pid"])
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

    def moved(self, new: Mapping[Path, Path]) -> None:
        """Folders of `write` have other names outside than they had; inside they keep theirs."""
        folders = [new.get(folder, folder) for folder in self.policy.write]
        self.policy = replace(self.policy, write=tuple(folders))
        self.disk = DiskWatch(folders, self.policy.limits.disk_mb)

    def _join_group(self, pid: int) -> None:
        """What the kernel cannot keep is counted instead."""
        if self._group is not None:
            try:
                self._group.add(pid)
            except OSError:
                self._group.close()
                self._group = None

    @property
    def isolated(self) -> bool:
        """Whether it has a network of its own: then only `socket` reaches what listens inside."""
        return self.network is not Network.SHARED

    def connecting(self, family: int = socket.AF_INET) -> socket.socket:
        """A TCP socket in its network, not connected."""
        return self._namespace.connecting(family) if self._namespace else socket.socket(family, socket.SOCK_STREAM)

    @property
    def root(self) -> int:
        """The process below which all others of the sandbox are."""
        return self._inside or self._pid

    @property
    def out_of_memory(self) -> bool:
        """After its end: whether the kernel ended it because its memory was used up."""
        return self._group is not None and self._group.out_of_memory

    # --- its end ---

    def ask_to_end(self) -> None:
        """SIGTERM to the command itself."""
        if self.policy.level is Level.NONE:
            signal_group(self._pid, signal.SIGTERM)
        for pid in children(self._inside)[:1] if self._inside else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def end(self) -> None:
        """Ends everything at once; the process itself is then to be waited for."""
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        elif self._pid and self.policy.level is not Level.NONE:
            # Bubblewrap's inner half ends with its outer one, except in the moment before it has asked the kernel for
            # that. Its own end is the end of all inside.
            if self._first >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._first, signal.SIGKILL)
            kill_group(self._pid)

    def settle(self) -> None:
        """After the process has ended: waits until the last of those inside has, which takes some milliseconds."""
        if self._first >= 0:
            select.select([self._first], [], [], SETTLE_S)

    def close(self) -> None:
        """After the end: gives back what is left. May be called twice."""
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
        if self._group is not None:
            self._group.kill()
            self._group.close()
            self._group = None

    def exit_code(self, code: int) -> int:
        """As of a child of ours: negative when a signal ended it. Bubblewrap says 128 + signal, as a shell does, and
        so does the keeper of what was ended here."""
        signalled = code in SIGNAL_CODES if self.policy.level is not Level.NONE else self._life < 0 and code == KILLED
        return 128 - code if signalled else code

    def _close_fds(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def _limit(pid: int, limits: Limits) -> None:
    """Sets what the kernel keeps for each process. It holds for all that `pid` starts from now on."""
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
