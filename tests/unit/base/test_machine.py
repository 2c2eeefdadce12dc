"""What a machine can train on: its GPUs, a Python that is new enough, and where pip finds more files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from osmosis.base.machine import Gpu, find_python, gpus, pip_find_links


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_gpus_are_those_that_the_driver_shows(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    assert gpus(environ) == []
    program(tmp_path / "nvidia-smi", "echo 'NVIDIA H100 80GB HBM3, 81559'; echo 'NVIDIA L4, 23034'")
    assert gpus(environ) == [Gpu("NVIDIA H100 80GB HBM3", 81559 << 20), Gpu("NVIDIA L4", 23034 << 20)]
    program(tmp_path / "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    assert gpus(environ) == []


def test_this_python_is_taken_when_it_is_new_enough() -> None:
    assert find_python((3, 10), os.environ) == Path(sys.executable)


def test_a_newer_python_is_looked_for_and_has_to_start(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    wanted = (3, sys.version_info[1] + 1)
    program(tmp_path / f"python3.{wanted[1]}", "echo 'not chosen by the version manager' >&2; exit 127")
    shim = f"echo '3 {wanted[1] + 1} /opt/python/bin/python3.x'"
    program(tmp_path / f"python3.{wanted[1] + 1}", shim)
    assert find_python(wanted, environ, running=(3, 9)) == Path("/opt/python/bin/python3.x")


def test_no_python_is_new_enough(tmp_path: Path) -> None:
    assert find_python((3, 90), {"PATH": str(tmp_path)}) is None


@pytest.mark.parametrize("section", ["global", "install"])
def test_find_links_are_pips(tmp_path: Path, section: str) -> None:
    assert pip_find_links({"PIP_FIND_LINKS": "/a https://b/c"}) == ["/a", "https://b/c"]
    config = tmp_path / "pip.conf"
    config.write_text(f"[{section}]\nfind-links =\n    /wheels\n    https://b/c%20d\n")
    assert pip_find_links({"PIP_CONFIG_FILE": str(config)}) == ["/wheels", "https://b/c%20d"]
    config.write_text("no config at all")
    assert pip_find_links({"PIP_CONFIG_FILE": str(config)}) == []
