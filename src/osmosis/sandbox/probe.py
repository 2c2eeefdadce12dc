"""What this machine can enforce, found out by trying it once: a program that is installed may still be forbidden.

The answers are kept for the life of the process. Nothing is installed or configured here.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys

from .bubblewrap import arguments
from .policy import Abilities, Level, Network, Policy

TRY_S = 10.0
ALLOW = (
    "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1 and user.max_user_namespaces; with "
    "AppArmor a profile for bwrap; inside a container --security-opt seccomp=unconfined)"
)
INSTALL = "install bubblewrap and slirp4netns (Debian, Ubuntu: apt-get install bubblewrap slirp4netns)"


@functools.cache
def probe() -> Abilities:
    """What works here. The first call takes some tens of milliseconds."""
    if sys.platform != "linux":
        return Abilities(Level.NONE, f"{sys.platform} has no namespaces", fix="run the platform on Linux")
    path = shutil.which("bwrap")
    if path is None:
        return Abilities(Level.NONE, "bubblewrap is not installed", fix=INSTALL)
    version = _said([path, "--version"]).rpartition(" ")[2]
    problem: str | None = "it was not tried"
    for nested_off in (True, False):  # versions before 0.8 do not know the option
        abilities = Abilities(Level.NAMESPACES, "", path, version, _router(), nested_off)
        problem = _tried([path, *arguments(Policy(), abilities, Network.NONE), "--", "/bin/true"])
        if problem is None:
            return abilities
    return Abilities(Level.NONE, f"bubblewrap cannot make namespaces here: {problem}", fix=ALLOW)


def _router() -> str:
    """The program that connects a network namespace to the outside, when one is here."""
    return next((found for name in ("slirp4netns", "pasta") if (found := shutil.which(name))), "")


def _said(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TRY_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _tried(argv: list[str]) -> str | None:
    """None when it worked, else the last it said."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TRY_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"it did not end within {TRY_S:g} s"
    except OSError as problem:
        return str(problem)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
