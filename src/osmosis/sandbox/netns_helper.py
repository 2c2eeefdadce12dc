"""Make sockets in another process's network namespace: `python -I -S netns_helper.py <fd>`. It joins the namespace and
hands its sockets to its parent; when that ends, it ends what it joined. Imports nothing of ours."""

import array
import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import signal
import socket
import struct
import sys
import time

NS_GET_USERNS = 0xB701
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
RTM_NEWADDR, RTM_NEWROUTE = 20, 24
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE = 1, 4, 0x400, 0x100
RTA_DST, IFA_ADDRESS, IFA_LOCAL = 1, 1, 2
RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNREACHABLE = 254, 4, 0, 7
LOOPBACK = 1
SIOCGIFFLAGS, IFF_UP = 0x8913, 1
LOOPBACK_S = 5.0


def join(pid: int) -> None:
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    owner = fcntl.ioctl(network, NS_GET_USERNS)
    libc = ctypes.CDLL(None, use_errno=True)
    for namespace, kind in ((owner, CLONE_NEWUSER), (network, CLONE_NEWNET)):
        if libc.setns(namespace, kind):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        os.close(namespace)
    # Wait until the namespace's maker has brought its loopback up, which it does last: doing so before breaks it.
    until = time.monotonic() + LOOPBACK_S
    with socket.socket() as asking:
        while time.monotonic() < until:
            answer = fcntl.ioctl(asking, SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
            if struct.unpack("16sh14x", answer)[1] & IFF_UP:
                return
            time.sleep(0.001)
    raise OSError("its loopback interface did not come up")


def listen(host: str, port: int) -> socket.socket:
    address = ipaddress.ip_address(host)
    if not address.is_loopback:
        own_address(address)
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


def own_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    head = struct.pack("=BBBBI", family, address.max_prefixlen, 0, 0, LOOPBACK)
    ask(RTM_NEWADDR, head + attribute(IFA_LOCAL, address.packed) + attribute(IFA_ADDRESS, address.packed))


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def ask(kind: int, body: bytes) -> None:
    flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        number = -struct.unpack("=i", kernel.recv(4096)[16:20])[0]
        if number:
            raise OSError(number, os.strerror(number))


def act(order: dict[str, object]) -> socket.socket | None:
    kind = order["do"]
    if kind == "join":
        join(int(str(order["pid"])))
    elif kind == "listen":
        return listen(str(order["host"]), int(str(order["port"])))
    elif kind == "socket":
        return socket.socket(int(str(order["family"])), socket.SOCK_STREAM, socket.IPPROTO_TCP)
    elif kind == "unreachable":
        # Every packet to the network fails at once, unless a longer prefix matches.
        to = ipaddress.ip_network(str(order["network"]))
        family = socket.AF_INET6 if to.version == 6 else socket.AF_INET
        fixed = (family, to.prefixlen, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNREACHABLE, 0)
        ask(RTM_NEWROUTE, struct.pack("=BBBBBBBBI", *fixed) + attribute(RTA_DST, to.network_address.packed))
    return None


def main(parent: socket.socket) -> None:
    joined: list[int] = []
    while packet := parent.recv(65536):
        opened, order = None, json.loads(packet)
        try:
            if order["do"] == "join":
                joined.append(os.pidfd_open(int(order["pid"])))
            opened = act(order)
            answer = b"ok"
        except OSError as problem:
            answer = f"{type(problem).__name__}: {problem.strerror or problem}".encode()
        fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [opened.fileno()]))] if opened else []
        parent.sendmsg([answer], fds)
        if opened:
            opened.close()
    for process in joined:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
