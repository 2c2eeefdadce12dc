"""Find out what this machine can enforce by trying it once: a program that is installed may still be forbidden."""

import ctypes
import functools
import shutil
import subprocess
import sys
from pathlib import Path

from osmosis.sandbox.bubblewrap import arguments
from osmosis.sandbox.policy import Abilities, Level, Network, Policy

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
