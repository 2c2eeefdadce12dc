"""What this machine can train on: its NVIDIA GPUs, its memory, a Python that is new enough.

Asks the driver's own tool and the file system; imports no library of the field and starts nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from configparser import ConfigParser, Error
from dataclasses import dataclass
from pathlib import Path

import psutil

TRAINER_PYTHON = (3, 11)
"""The oldest Python that the trainer's libraries support."""
ASK_S = 5.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU."""

    name: str
    memory_bytes: int


def gpus(environ: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that the driver shows; none where there is no driver."""
    tool = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=ASK_S, env=dict(environ), check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = said.stdout.splitlines() if said.returncode == 0 else []
    return [Gpu(name.strip(), int(mib) << 20) for name, _, mib in (line.rpartition(",") for line in lines) if name]


def memory_bytes() -> int:
    """The machine's memory."""
    return psutil.virtual_memory().total


def find_python(
    least: tuple[int, int], environ: Mapping[str, str], *, running: tuple[int, int] | None = None
) -> Path | None:
    """This Python when it is new enough, else the oldest on PATH, or beside this one, that is."""
    if (running or sys.version_info[:2]) >= least:
        return Path(sys.executable)
    return next(iter(_others(least, environ)), None)


def _others(least: tuple[int, int], environ: Mapping[str, str]) -> Iterator[Path]:
    for minor in range(least[1], least[1] + 10):
        found = shutil.which(f"python{least[0]}.{minor}", path=environ.get("PATH"))
        if found and (path := _itself(found, (least[0], minor))):
            yield path
    # As version managers lay them out.
    for folder in sorted(Path(sys.base_prefix).parent.iterdir(), key=lambda path: _numbers(path.name)):
        path = folder / "bin" / "python3"
        if _numbers(folder.name) >= least and path.exists():
            yield path


def _numbers(name: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)", name)
    return tuple(int(number) for number in found.groups()) if found else (0, 0)


def _itself(program: str, version: tuple[int, int]) -> Path | None:
    """The interpreter behind a program; version managers put some on PATH that only start another, or refuse to."""
    command = [program, "-I", "-c", "import sys; print(*sys.version_info[:2], sys.executable)"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False).stdout.split(None, 2)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Path(said[2].strip()) if len(said) == 3 and said[:2] == [str(number) for number in version] else None


def pip_find_links(environ: Mapping[str, str]) -> list[str]:
    """Where pip looks for more files than its index has: `PIP_FIND_LINKS`, else pip's configuration, which uv reads
    neither of."""
    if given := environ.get("PIP_FIND_LINKS", "").split():
        return given
    parser = ConfigParser(interpolation=None)
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    config_home = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", config_home / "pip" / "pip.conf"]
    files += [Path(sys.prefix) / "pip.conf"]
    if chosen := environ.get("PIP_CONFIG_FILE"):
        files = [Path(chosen)]
    try:
        parser.read(files)
    except (Error, OSError, UnicodeDecodeError):
        return []
    sections = [name for name in ("install", "global") if parser.has_option(name, "find-links")]
    return parser.get(sections[0], "find-links").split() if sections else []
