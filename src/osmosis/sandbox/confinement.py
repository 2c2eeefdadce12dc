"""The system call filter of sandboxed processes, as a BPF program. Numbers: the kernel's `asm/unistd_64.h` and
`asm-generic/unistd.h`."""

import base64
import errno
import json
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

from osmosis.sandbox.namespaces import CERTIFICATES, ETC, SYSTEM
from osmosis.sandbox.policy import Network, Policy

X86_64, AARCH64 = "x86_64", "aarch64"
AUDIT_ARCH = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
X32 = 0x40000000
CLONE = {X86_64: 56, AARCH64: 220}
SOCKET = {X86_64: 41, AARCH64: 198}
CLONE3 = 435
NEW_NAMESPACES = 0x7E020000
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16

REFUSED = {
    # keyctl add_key request_key; ptrace process_vm_readv process_vm_writev kcmp; bpf perf_event_open userfaultfd;
    # mount umount2 pivot_root chroot; unshare setns; quotactl swapon swapoff; init_module finit_module delete_module
    # kexec_load kexec_file_load reboot; syslog acct settimeofday clock_settime clock_adjtime; open_by_handle_at
    # fanotify_init; iopl ioperm
    X86_64: (
        *(250, 248, 249, 101, 310, 311, 312, 321, 298, 323, 165, 166, 155, 161, 272, 308, 179, 167, 168, 175, 313),
        *(176, 246, 320, 169, 103, 163, 164, 227, 305, 304, 300, 172, 173),
    ),
    AARCH64: (
        *(219, 217, 218, 117, 270, 271, 272, 280, 241, 282, 40, 39, 41, 51, 97, 268, 60, 224, 225, 105, 273),
        *(106, 104, 294, 142, 116, 89, 170, 112, 266, 265, 262),
    ),
}
# open_tree move_mount fsopen fsconfig fsmount fspick; pidfd_getfd; mount_setattr quotactl_fd; statmount listmount;
# open_tree_attr
REFUSED_EVERYWHERE = (428, 429, 430, 431, 432, 433, 438, 442, 443, 457, 458, 467)
IO_URING = (425, 426, 427)
SHARED = {
    # Without namespaces: shmget shmat semget msgget mq_open mq_unlink, inotify_add_watch; truncate, which Landlock
    # knows from version 3 on
    X86_64: (29, 30, 64, 68, 240, 241, 254, 76),
    AARCH64: (194, 196, 190, 186, 180, 181, 27, 45),
}

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCH, FIRST_ARGUMENT = 0, 4, 16
_Instruction = tuple[int, int, int, int]


def build_filter(*, own_ipc: bool = True, families: tuple[int, ...] = (AF_UNIX, AF_INET, AF_INET6)) -> bytes | None:
    machine = platform.machine()
    if machine not in AUDIT_ARCH:
        return None
    instructions = _instructions(machine, own_ipc, (*families, AF_NETLINK))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _instructions(machine: str, own_ipc: bool, families: tuple[int, ...]) -> Iterator[_Instruction]:
    yield LOAD, 0, 0, ARCH
    yield EQUAL, 1, 0, AUDIT_ARCH[machine]
    yield RETURN, 0, 0, ERRNO | errno.EPERM
    yield LOAD, 0, 0, NUMBER
    if machine == X86_64:
        yield from _if(AT_LEAST, X32, errno.EPERM)
    for number in (*REFUSED[machine], *REFUSED_EVERYWHERE, *(() if own_ipc else SHARED[machine])):
        yield from _if(EQUAL, number, errno.EPERM)
    # As from an older kernel: libraries then use `clone`, whose flags can be read here, and ordinary calls.
    for number in (CLONE3, *IO_URING):
        yield from _if(EQUAL, number, errno.ENOSYS)
    yield EQUAL, 0, 4, CLONE[machine]
    yield LOAD, 0, 0, FIRST_ARGUMENT
    yield from _if(ANY_BIT, NEW_NAMESPACES, errno.EPERM)
    yield RETURN, 0, 0, ALLOW
    yield EQUAL, 0, 2 + len(families), SOCKET[machine]
    yield LOAD, 0, 0, FIRST_ARGUMENT
    for index, family in enumerate(families):
        yield EQUAL, len(families) - index, 0, family
    yield RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT
    yield RETURN, 0, 0, ALLOW


def _if(test: int, value: int, error: int) -> Iterator[_Instruction]:
    yield test, 0, 1, value
    yield RETURN, 0, 0, ERRNO | error


ACCOUNTS = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/resolv.conf")
PROC = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/sys/kernel/osrelease")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
OTHER_USER = 65533
"""User and group of the command where the caller is root; nobody else has them by convention (65534 is `nobody`)."""


def has_internet(policy: Policy) -> bool:
    return policy.network is not Network.NONE or bool(policy.listen)


def build_rules(policy: Policy, tmp: Path) -> bytes:
    certificates = [policy.environ[name] for name in CERTIFICATES if name in policy.environ]
    read = (*SYSTEM, *ETC, *ACCOUNTS, *PROC, *certificates, *map(str, policy.read))
    write = [str(folder) for folder in _changed_folders(policy, tmp)]
    devices = [*DEVICES, *map(str, policy.devices)]
    families = (*((AF_UNIX,) if policy.unix_sockets else ()), *((AF_INET, AF_INET6) if has_internet(policy) else ()))
    rules = {
        "read": [*read, *(("/proc", "/sys") if policy.devices else ())],
        "write": write,
        "devices": devices,
        "user": OTHER_USER if os.geteuid() == 0 else None,
        "filter": base64.b64encode(build_filter(own_ipc=False, families=families) or b"").decode(),
    }
    return json.dumps(rules).encode()


def give_folders(policy: Policy, tmp: Path) -> None:
    if os.geteuid() != 0:
        return
    for folder in _changed_folders(policy, tmp):
        if folder.is_dir() and folder.stat().st_uid != OTHER_USER:
            for root, folders, files in os.walk(folder):
                for path in (os.path.join(root, name) for name in (".", *folders, *files)):
                    if os.path.isdir(path) or os.lstat(path).st_nlink == 1:
                        os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)


def _changed_folders(policy: Policy, tmp: Path) -> Iterator[Path]:
    yield from (tmp, *policy.write)
    if policy.work is not None:
        yield policy.work
