"""The published client of the package index, as a program to call."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

UNREACHABLE = (
    "dns error",
    "Could not connect",
    "error sending request",
    "timed out",
    "Connection refused",
    "tcp connect",
)


def python_for_it() -> str | None:
    """An interpreter of 3.12 or newer, which the published client needs; a name on PATH may be a broken shim."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    candidates = [
        sys.executable,
        *(f"python3.{minor}" for minor in (12, 13, 14)),
        *map(str, pyenv.glob("3.*/bin/python")),
    ]
    for candidate in candidates:
        check = [shutil.which(candidate) or candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"]
        try:
            if subprocess.run(check, capture_output=True, check=False, timeout=30).returncode == 0:
                return check[0]
        except OSError:
            continue
    return None


def install_published_client(folder: Path) -> Path:
    """Return its program, installed from the index into an environment of its own; skip where that cannot be had."""
    uv, python = find_uv_bin(), python_for_it()
    if python is None:
        pytest.skip("the published client needs Python 3.12 or newer, and none is installed")
    subprocess.run([uv, "venv", "-q", "--python", python, str(folder)], check=True, capture_output=True)
    override = folder / "override.txt"
    override.write_text("certifi\n")  # a mirror may lag behind the newest one, which the client asks for
    install = [uv, "pip", "install", "-q", "--python", str(folder), "--override", str(override)]
    install.append("osmosis-ai[server,eval]==0.3.*")
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode != 0 and any(words.lower() in done.stderr.lower() for words in UNREACHABLE):
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "osmosis"
