"""Try which namespaces this machine can have, and write bubblewrap's arguments, which go through a descriptor, so that
no variable's value is on a command line. All but `/tmp` and `write` is read-only."""

import ctypes
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from osmosis.sandbox.network import NAME_SERVER
from osmosis.sandbox.policy import WORK, Abilities, Level, Network, Policy

USER = 1000
HOSTNAME = "sandbox"
HOME = "/tmp/home"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
ETC = (
    *("/etc/alternatives", "/etc/fonts", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    *("/etc/localtime", "/etc/magic", "/etc/mime.types", "/etc/protocols", "/etc/services", "/etc/timezone"),
    *("/etc/ca-certificates", "/etc/pki/ca-trust/extracted", "/etc/pki/tls/cert.pem", "/etc/pki/tls/certs"),
    *("/etc/ssl/cert.pem", "/etc/ssl/certs", "/etc/ssl/openssl.cnf"),
)
HIDDEN_PROC = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi")
"""Hidden because root outside stays root to the kernel, whatever capabilities it dropped: these would be writable."""
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")


def arguments(policy: Policy, network: Network) -> Iterator[str]:
    yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    if network is not Network.SHARED:
        yield "--unshare-net"
    yield from ("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", HOSTNAME)
    yield from ("--uid", str(USER), "--gid", str(USER))
    yield from ("--proc", "/proc")
    for path in HIDDEN_PROC:
        yield from ("--ro-bind-try", path, path)
    yield from ("--dev", "/dev", "--size", _bytes(policy.shared_memory_mb), "--perms", "1777", "--tmpfs", "/dev/shm")
    yield from ("--size", _bytes(policy.tmp_mb), "--perms", "1777", "--tmpfs", "/tmp", "--dir", HOME)
    yield from _system(policy, network)
    for kind, folders in (("--ro-bind", policy.read), ("--bind", policy.write)):
        for folder in folders:
            yield from (kind, str(folder), str(policy.inside(folder)))
    if policy.work is not None:
        yield from ("--bind", str(policy.work), WORK)
    for device in policy.devices:
        yield from ("--dev-bind-try", str(device), str(device))
    if policy.devices:  # their libraries look there for what is near to what
        yield from ("--ro-bind-try", "/sys", "/sys")
    yield from ("--remount-ro", "/dev", "--remount-ro", "/")
    yield from ("--chdir", str(policy.cwd or (WORK if policy.work else "/tmp")), "--clearenv")
    for name, value in variables(policy).items():
        yield from ("--setenv", name, value)


def variables(policy: Policy, tmp: str = "/tmp") -> dict[str, str]:
    return {**policy.environ, "HOME": f"{tmp}/home", "TMPDIR": tmp}


def files(network: Network) -> dict[str, str]:
    texts = {
        "/etc/passwd": f"user:x:{USER}:{USER}::{HOME}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
        "/etc/group": f"user:x:{USER}:\nnogroup:x:65534:\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
    if network is not Network.SHARED:
        texts["/etc/hosts"] = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n"
    if network is Network.OPEN:
        texts["/etc/resolv.conf"] = f"nameserver {NAME_SERVER}\n"
    return texts


def _system(policy: Policy, network: Network) -> Iterator[str]:
    for path in SYSTEM:
        # On most systems /bin is a link into /usr: a bind would make a second, separate folder of it.
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        else:
            yield from ("--ro-bind-try", path, path)
    shared = ("/etc/hosts", "/etc/resolv.conf") if network is Network.SHARED else ()
    named = [policy.environ[name] for name in CERTIFICATES if name in policy.environ]
    for path in (*ETC, *shared, *(path for path in named if not path.startswith(SYSTEM + ETC))):
        if os.path.isabs(path):
            yield from ("--ro-bind-try", os.path.realpath(path), path)


def _bytes(megabytes: int) -> str:
    return str(megabytes * 1024 * 1024)


def python_folders(python: Path) -> tuple[Path, ...]:
    folders: dict[Path, None] = {}
    link = python
    for _ in range(16):
        prefix = link.parent.parent
        if (prefix / "pyvenv.cfg").is_file():
            folders[prefix] = None
        elif not str(prefix).startswith(SYSTEM):
            for name in ("bin", "lib", "lib64", "include", "ssl"):
                if (prefix / name).is_dir():
                    folders[prefix / name] = None
        if not link.is_symlink():
            break
        link = Path(os.path.normpath(link.parent / os.readlink(link)))
    return tuple(folders)


OWN_NAMESPACES = Path(__file__).with_name("own_namespaces.py")
LANDLOCK_CREATE_RULESET, VERSION_ONLY = 444, 1
TRY_S = 10.0
ALLOW = (
    "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1 and user.max_user_namespaces; with "
    "AppArmor a profile for bwrap; inside a container --security-opt seccomp=unconfined)"
)
INSTALL = "install bubblewrap and slirp4netns (Debian, Ubuntu: apt-get install bubblewrap slirp4netns)"


@functools.cache
def probe() -> Abilities:
    if sys.platform != "linux":
        return Abilities(Level.NONE, f"{sys.platform} has no namespaces", fix="run the platform on Linux")
    router = next((program for name in ("slirp4netns", "pasta") if (program := shutil.which(name))), "")
    bubblewrap = shutil.which("bwrap") or ""
    problem = ""
    for path in dict.fromkeys((bubblewrap, "")):
        version = _output_of([path, "--version"]).rpartition(" ")[2] if path else ""
        abilities = Abilities(Level.NAMESPACES, "", path, version, router)
        command = [*namespace_program(abilities), *arguments(Policy(), Network.NONE), "--", "/bin/true"]
        if (refusal := _error_of(command)) is None:
            return abilities
        problem = problem or refusal
    missing = "" if bubblewrap else "bubblewrap is not installed, and "
    reason, fix = f"{missing}namespaces cannot be made here: {problem}", ALLOW if bubblewrap else f"{INSTALL}; {ALLOW}"
    if (offered := landlock_version()) > 0:
        return Abilities(Level.LANDLOCK, reason, version=f"version {offered}", fix=fix)
    return Abilities(Level.NONE, f"{reason}; the kernel has no Landlock", fix=fix)


def namespace_program(abilities: Abilities) -> list[str]:
    return [abilities.bubblewrap] if abilities.bubblewrap else [sys.executable, "-I", "-S", str(OWN_NAMESPACES)]


def landlock_version() -> int:
    return int(ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_ONLY))


def _output_of(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TRY_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _error_of(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TRY_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"it did not end within {TRY_S:g} s"
    except OSError as problem:
        return str(problem)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
