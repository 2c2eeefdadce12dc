import itertools
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

TRAINER_PYTHON = (3, 11)  # oldest Python that the trainer's libraries support
ASK_S = 5.0


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_bytes: int


def list_gpus(environ: Mapping[str, str]) -> list[Gpu]:
    tool = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=ASK_S, env=dict(environ), check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = result.stdout.splitlines() if result.returncode == 0 else []
    gpus = [Gpu(name.strip(), int(mib) << 20) for name, _, mib in (line.rpartition(",") for line in lines) if name]
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return gpus
    # Numbers, or ids of devices (GPU-..., MIG-...), which are only counted; -1 and nothing hide all that follow.
    names = [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",")]
    names = list(itertools.takewhile(lambda name: name not in ("", "-1"), names))
    visible = (int(name) if name.isdigit() else at for at, name in enumerate(names))
    return [gpus[number] for number in visible if number < len(gpus)]


def gpu_names(environ: Mapping[str, str]) -> list[str]:
    count = len(list_gpus(environ))
    value = environ.get("CUDA_VISIBLE_DEVICES")
    return [str(number) for number in range(count)] if value is None else [n.strip() for n in value.split(",")][:count]


def memory_bytes() -> int:
    return psutil.virtual_memory().total


def find_python(
    least: tuple[int, int], environ: Mapping[str, str], *, running: tuple[int, int] | None = None
) -> Path | None:
    if (running or sys.version_info[:2]) >= least:
        return Path(sys.executable)
    return next(iter(_others(least, environ)), None)


def _others(least: tuple[int, int], environ: Mapping[str, str]) -> Iterator[Path]:
    for minor in range(least[1], least[1] + 10):
        program = shutil.which(f"python{least[0]}.{minor}", path=environ.get("PATH"))
        if program and (path := _itself(program, (least[0], minor))):
            yield path
    # As version managers lay them out.
    for folder in sorted(Path(sys.base_prefix).parent.iterdir(), key=lambda path: _numbers(path.name)):
        path = folder / "bin" / "python3"
        if _numbers(folder.name) >= least and path.exists():
            yield path


def _numbers(name: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)", name)
    return tuple(int(number) for number in match.groups()) if match else (0, 0)


def _itself(program: str, version: tuple[int, int]) -> Path | None:
    command = [program, "-I", "-c", "import sys; print(*sys.version_info[:2], sys.executable)"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False).stdout.split(
            None, 2
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Path(output[2].strip()) if len(output) == 3 and output[:2] == [str(number) for number in version] else None


def pip_find_links(environ: Mapping[str, str]) -> list[str]:
    if links := environ.get("PIP_FIND_LINKS", "").split():
        return links
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
