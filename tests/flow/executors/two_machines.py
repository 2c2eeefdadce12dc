"""Machines that share no disk and no network stack but a cable: namespaces, which need no rights on Linux.

A hub, where the platform is, behind TLS of a throw-away authority; machines of their own network, mounts, host name
and processes, each with a cable to the hub. What is under the tests' folder is not there on a machine, except its own
folder, which is `/mnt`.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from support.platform_process import FAKE_JOB, PlatformProcess
from support.private_tls import PrivateAuthority

NETWORK = "10.77.0"
HUB = f"{NETWORK}.1:8443"
URL = f"https://{HUB}"
HERE = Path("/mnt")
"""Its own folder, as a machine sees it."""
OWN_USER = ("unshare", "--user", "--map-root-user")
_HUB = f"""
ip link set lo up
ip link add br0 type bridge
ip addr add {NETWORK}.1/24 dev br0
ip link set br0 up
echo ready
exec sleep infinity
"""
_MACHINE = """
read cable
ip link set lo up
ip addr add $1/24 dev cable
ip link set cable up
hostname "$2"
mount --bind "$3" /mnt
mount -t tmpfs none "$4"
test ! -e "$3" || exit 9
shift 4
exec unshare --pid --fork --kill-child --mount-proc "$@"
"""


def skip_without_namespaces() -> None:
    """Says why there are none here."""
    missing = [name for name in ("unshare", "nsenter", "ip", "mount", "hostname") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} on this machine")
    trial = "ip link add br0 type bridge && mount -t tmpfs none /mnt && hostname trial"
    command = [*OWN_USER, "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-ec", trial]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if tried.returncode != 0:
        pytest.skip(f"namespaces cannot be made on this machine: {tried.stderr.strip()[-200:]}")


@dataclass
class Machine:
    """Killed, it is gone with everything that ran on it."""

    name: str
    folder: Path
    holder: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.holder.kill()
        self.holder.wait(20)

    @property
    def log(self) -> str:
        return (self.folder / "machine.log").read_text()

    def job_folder(self, run_id: str, shard: int) -> Path:
        return self.folder / "jobs" / "runs" / run_id / f"shard-{shard}"


@dataclass
class Hub:
    """The network that the machines are in."""

    holder: subprocess.Popen[bytes]
    hidden: Path
    """What no machine sees."""
    authority: PrivateAuthority
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    machines: list[Machine] = field(default_factory=list)

    @property
    def within(self) -> list[str]:
        return ["nsenter", f"--target={self.holder.pid}", "--user", "--net", "--preserve-credentials"]

    def run(self, *words: str) -> None:
        subprocess.run([*self.within, *words], check=True, timeout=60)

    def front(self, port: int, socket: Path) -> None:
        """TLS before the platform, which listens at this port of the hub's loopback."""
        command = self.authority.front(HUB, f"127.0.0.1:{port}", str(socket))
        self.started.append(subprocess.Popen([*self.within, *command]))

    def machine(self, name: str, folder: Path, command: Sequence[str]) -> Machine:
        """One that runs this command, and ends with it."""
        number = len(self.machines) + 2
        folder.mkdir(exist_ok=True)
        shutil.copy(self.authority.ca_file, folder / "ca.pem")
        own = ["unshare", "--net", "--mount", "--uts", "sh", "-ec", _MACHINE, "sh"]
        with (folder / "machine.log").open("ab") as output:
            holder = subprocess.Popen(
                [*self.within, *own, f"{NETWORK}.{number}", name, str(folder), str(self.hidden), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        made = Machine(name, folder, holder)
        self.machines.append(made)
        self._plug_in(holder, f"veth{number}")
        holder.stdin.write(b"plugged in\n")
        holder.stdin.close()
        return made

    def cut_off(self, machine: Machine, *, again: bool = False) -> None:
        """Take its cable out, or put it back (`again`); what runs there goes on."""
        number = self.machines.index(machine) + 2
        self.run("ip", "link", "set", f"veth{number}", "up" if again else "down")

    def _plug_in(self, holder: subprocess.Popen[bytes], name: str) -> None:
        own, ours = Path(f"/proc/{holder.pid}/ns/net"), Path(f"/proc/{self.holder.pid}/ns/net").readlink()
        here = Path("/proc/self/ns/net").readlink()
        while own.readlink() in (here, ours):  # it has not entered its own network yet
            assert holder.poll() is None, "the machine did not start"
        self.run("ip", "link", "add", name, "type", "veth", "peer", "name", "cable", "netns", str(holder.pid))
        self.run("ip", "link", "set", name, "master", "br0", "up")

    def worker(
        self, name: str, folder: Path, token: str, *, job_command: str = FAKE_JOB, kept_up: bool = False
    ) -> Machine:
        """A machine with a worker on it, which knows a URL, a token and an authority. `kept_up`: one that is killed is
        started again, and its jobs outlive it; else the machine ends with it."""
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(token)
        (folder / "worker.toml").write_text(f"job_command = {job_command.split()!r}\n".replace("'", '"'))
        options = ["--platform-url", URL, "--token-file", str(HERE / "token"), "--ca-file", str(HERE / "ca.pem")]
        options += ["--data-dir", str(HERE / "jobs"), "--config", str(HERE / "worker.toml"), "--no-sandbox"]
        command = [sys.executable, "-m", "osmosis", "worker", "start", *options, "--name", name]
        if kept_up:
            command = ["sh", "-c", 'while :; do "$@" || sleep 0.2; done', "init", *command]
        return self.machine(name, folder, command)


@contextmanager
def hub(folder: Path, hidden: Path) -> Iterator[Hub]:
    skip_without_namespaces()
    holder = subprocess.Popen([*OWN_USER, "--net", "sh", "-ec", _HUB], stdout=subprocess.PIPE)
    made = Hub(holder, hidden, PrivateAuthority.made(folder / "ca", f"{NETWORK}.1"))
    try:
        assert holder.stdout.readline() == b"ready\n"
        yield made
    finally:
        for machine in made.machines:
            machine.kill()
        for process in (*reversed(made.started), holder):
            process.kill()
            process.wait(20)


@contextmanager
def platform_in(
    network: Hub,
    folder: Path,
    prepare: Callable[[PlatformProcess, Path], None] = PlatformProcess.prepare,
    **options: str,
) -> Iterator[PlatformProcess]:
    """A platform whose only way in is the front; prepared before it was put there, for nothing else can be pushed."""
    platform = PlatformProcess(folder / "data", no_worker="", public_url=URL, **options)
    sockets = Path(tempfile.mkdtemp(prefix="osm"))
    platform.options.pop("public_url")
    platform.start()
    try:
        platform.login()
        prepare(platform, folder / "checkout")
        platform.terminate()
        headers = platform.http.headers
        platform.http.close()
        platform.http = httpx.Client(
            base_url=f"http://127.0.0.1:{platform.port}",
            transport=httpx.HTTPTransport(uds=str(sockets / "s")),
            headers=headers,
            timeout=60,
        )
        platform.within, platform.options["public_url"] = network.within, URL
        network.front(platform.port, sockets / "s")
        platform.start()
        yield platform
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            platform.end()
        platform.http.close()
        shutil.rmtree(sockets, ignore_errors=True)
