import contextlib
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from osmosis.base.net import embedded_address, is_public
from osmosis.errors import SandboxUnavailable
from osmosis.sandbox.policy import Network

HELPER = Path(__file__).with_name("netns_helper.py")
CLOSED_NETWORKS = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4"),
)
"""Private, link-local, shared, benchmarking, multicast and reserved addresses (RFC 6890); Azure's wire server."""
OWN, GATEWAY, NAME_SERVER = "10.0.2.100", "10.0.2.2", "10.0.2.3"
TAP = "tap0"
WAIT_S = 10.0
_LOCAL = re.compile(r"\|-- (\S+)\s+/32 host LOCAL")


class SandboxNetwork:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(WAIT_S)
        self._orders = ours
        self._router: subprocess.Popen[bytes] | None = None
        self._router_life: int | None = None
        self._pasta: int | None = None
        with theirs:
            self._helper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(HELPER), str(theirs.fileno())],
                env={},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def join(self, pid: int) -> None:
        self._order(do="join", pid=pid)

    def listen(self, host: str, port: int) -> socket.socket:
        return self._open_socket(do="listen", host=host, port=port)

    def connecting(self, family: int = socket.AF_INET) -> socket.socket:
        return self._open_socket(do="socket", family=int(family))

    def open(self, router: str) -> None:
        if Path(router).name == "pasta":
            self._start_pasta(router)
        else:
            self._start_slirp(router)
        for network in (*CLOSED_NETWORKS, *own_addresses()):
            self._order(do="unreachable", network=network)

    def close(self) -> None:
        self._orders.close()
        if self._router_life is not None:
            os.close(self._router_life)
            self._router_life = None
        if self._pasta is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pasta, signal.SIGKILL)
            os.close(self._pasta)
            self._pasta = None
        for process in (self._router, self._helper):
            if process is not None:
                process.kill()
                process.wait()

    def _start_slirp(self, router: str) -> None:
        ready, tell_ready = os.pipe()
        ends, life = os.pipe()
        self._router_life = life
        options = ["--configure", "--mtu=65520", "--disable-host-loopback", "--enable-sandbox", "--enable-seccomp"]
        try:
            self._router = subprocess.Popen(
                [router, *options, "-r", str(tell_ready), "-e", str(ends), str(self._helper.pid), TAP],
                env={"PATH": os.defpath},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(tell_ready, ends),
                start_new_session=True,
            )
        finally:
            os.close(tell_ready)
            os.close(ends)
        with open(ready, "rb", buffering=0) as waiting:
            if not waiting.read(1):
                raise SandboxUnavailable(f"{router} cannot connect the sandbox to the network")

    def _start_pasta(self, router: str) -> None:
        options = ["--config-net", "--ipv4-only", "--quiet", "--no-map-gw", "--ns-ifname", TAP]
        if os.geteuid() == 0:
            options += ["--runas", "0"]  # else it becomes somebody who may not enter the namespace
        options += ["--address", OWN, "--netmask", "24", "--gateway", GATEWAY, "--dns-forward", NAME_SERVER]
        for direction in ("-t", "-u", "-T", "-U"):
            options += [direction, "none"]
        with tempfile.TemporaryDirectory(prefix="osmosis-pasta-") as folder:
            pid = Path(folder, "pid")
            argv, env = [router, *options, "--pid", str(pid), str(self._helper.pid)], {"PATH": os.defpath}
            done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S)
            pid_text = pid.read_text().strip() if pid.exists() else ""
        if done.returncode or not pid_text:
            last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
            raise SandboxUnavailable(f"{router} cannot connect the sandbox to the network: {last}")
        try:
            self._pasta = os.pidfd_open(int(pid_text))
        except OSError as problem:
            raise SandboxUnavailable(f"{router} cannot connect the sandbox to the network: {problem}") from problem

    def _order(self, **order: object) -> None:
        for left_over in self._ask(order):
            os.close(left_over)

    def _open_socket(self, **order: object) -> socket.socket:
        return socket.socket(fileno=self._ask(order)[0])

    def _ask(self, order: dict[str, object]) -> list[int]:
        try:
            self._orders.send(json.dumps(order).encode())
            answer, fds, _, _ = socket.recv_fds(self._orders, 4096, 1)
        except OSError as problem:
            raise SandboxUnavailable(f"the sandbox's network does not answer: {problem}") from problem
        if answer != b"ok":
            raise SandboxUnavailable(f"the sandbox's network cannot do {order}: {answer.decode(errors='replace')}")
        return fds


def own_addresses() -> list[str]:
    with contextlib.suppress(OSError):
        return sorted({f"{address}/32" for address in _LOCAL.findall(Path("/proc/net/fib_trie").read_text("ascii"))})
    return []


def is_outside(address: str) -> bool:
    parsed = embedded_address(ipaddress.ip_address(address))
    return is_public(parsed) and f"{parsed}/32" not in own_addresses()


def effective_network(network: Network, router: str) -> Network:
    return Network.SHARED if network is Network.OPEN and not router else network
